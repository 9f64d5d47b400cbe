"""Where the flights of one context leave what they find: accrued gradients, and factors of dense layers (Adam 3.2.6).

A flight is told the slot and how many examples that slot holds already. Native steps find both in the flight's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.native import address_of
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.regions import Range
from adamctl.kernels.segments import FIRST_FREE_WORD, Words

IMAGES, LABELS, RATE, SHARE, LOSS, CORRECT, CLIPPED, ACCRUED, FILLED = range(FIRST_FREE_WORD, FIRST_FREE_WORD + 9)
"""Words of a flight's row.

Addresses of its images and labels; the learning rate of its local update and its examples' share of their batch
(float32); its loss (float64), correct examples and layers that were scaled down; addresses of the slot in which it
accrues and of that slot's flag. Addresses of each tensor's kept errors and activations follow.
"""
WORDS = FIRST_FREE_WORD + 9


class SlotPlace(NamedTuple):
    """Where a flight accrues: the number of its slot, among its context's, and the examples that are in it already."""

    slot: int = 0
    examples: int = 0


class KeptFactors(NamedTuple):
    """Where the factors of one tensor are kept; gradient = errors.T @ activations.

    Attributes:
        tensor: its index in the layout.
        rows: those that the partition holds: the columns of `errors` that it writes.
        errors, activations: of each slot, [examples, outputs] and [examples, inputs], of the whole tensor.
    """

    tensor: int
    rows: Range
    errors: Sequence[Array]
    activations: Sequence[Array]


class Accruing:
    """Where the flights of one context accrue.

    Attributes:
        slots: flat vectors, of which `begin` names one for each flight.
        filled: [slots], whether a slot holds anything; written by the flight that accrues.
        weights: weights to which the gradient is also applied, if any.
        factors: tensors whose factors are kept.
        skipped: those of them whose gradient is not computed.
        turn: where flights accrue in the order of their numbers: the one whose turn it is, 1 at first; None: they
            accrue as they come.
    """

    def __init__(
        self,
        slots: Sequence[Array],
        weights: Array | None = None,
        filled: NDArray[np.int64] | None = None,
        factors: Sequence[KeptFactors] = (),
        skips: bool = False,
        turn: Words | None = None,
    ) -> None:
        """`skips`: no gradient is computed where factors are kept; nothing may be applied to `weights` then."""
        self.turn = turn
        if skips and weights is not None:
            raise ValueError("expected gradients of all tensors where they are applied to weights")
        self.slots, self.weights = tuple(slots), weights
        self.filled = np.zeros(len(self.slots), np.int64) if filled is None else filled
        self.factors = tuple(factors)
        self.skipped = frozenset(kept.tensor for kept in factors) if skips else frozenset[int]()
        self._addresses = [self._addresses_of(number) for number in range(len(self.slots))]
        widths = [array.strides[0] for kept in self.factors for array in (kept.errors[0], kept.activations[0])]
        self._row_bytes = np.array([0, 0, *widths], np.int64)

    def stand_ins(self) -> Mapping[int, NDArray[np.generic]]:
        """Returns word of a row -> the array that stands for it in native calls."""
        stand_ins: dict[int, NDArray[np.generic]] = {ACCRUED: self.slots[0], FILLED: self.filled[:1]}
        for number, kept in enumerate(self.factors):
            stand_ins[WORDS + 2 * number] = kept.errors[0]
            stand_ins[WORDS + 2 * number + 1] = kept.activations[0]
        return stand_ins

    def addresses(self, place: SlotPlace) -> NDArray[np.int64]:
        """Returns the words from ACCRUED on of a flight that accrues there."""
        return self._addresses[place.slot] + place.examples * self._row_bytes

    def _addresses_of(self, number: int) -> NDArray[np.int64]:
        arrays: list[NDArray[np.generic]] = [self.slots[number], self.filled[number:]]
        for kept in self.factors:
            arrays += [kept.errors[number], kept.activations[number]]
        return np.array([address_of(one) for one in arrays], np.int64)

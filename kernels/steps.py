"""Several steps of one thread as one native call, where all of a step is native and their batches are at hand.

Coming back to Python costs little by itself, and much more once a step has gone through megabytes and swept the
interpreter out of the caches: some fifty microseconds that hold its lock (see docs/decisions/0013). So a thread that
finds several batches waiting trains on them one after another without coming back; clipping, accruing and applying to
the shared weights (Adam 3.2.2) belong to each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.accrue import Accrual
from adamctl.kernels.losses import Loss
from adamctl.kernels.native import REFUSED, Call, NativeCheck, Word, can_compile, compile_calls, joined
from adamctl.kernels.operation import Array
from adamctl.kernels.plan import BoundLayer, Piece, StepOutputs, step_pieces

STEPS_MAX = 16

IMAGES, LABELS, ACCRUED, FILLED, RATE, LOSS, CORRECT, CLIPPED = range(8)
WORDS = 8
ARGUMENTS = Struct("=qqqqf4x24x")  # addresses and the rate; what the step returns is zero
RESULTS = Struct("=40xdqq")


StepOf: TypeAlias = tuple[Array, NDArray[np.int32], float]
"""A batch of `Steps`: contiguous float32 images and int32 labels, and the rate at which it moves the weights."""


class StepMade(NamedTuple):
    """What came of a step: summed loss, correctly classified examples, layers whose gradient was scaled down."""

    loss_sum: float
    correct: int
    clipped: int


class Accruing(NamedTuple):
    """Where steps accrue.

    Attributes:
        accrual: makes the calls.
        slots: flat vectors, one of which is chosen at each call.
        filled: [slots], whether a slot holds anything; written by the step that accrues.
        weights: what the gradient is also applied to, if anything.
    """

    accrual: Accrual
    slots: Sequence[Array]
    filled: NDArray[np.int64]
    weights: Array | None


class Steps:
    """Makes up to STEPS_MAX steps of whole batches at a call."""

    def __init__(self, calls: Sequence[Call], values: Sequence[Array], step: StepOutputs, accruing: Accruing) -> None:
        """Args:
        calls: of one step, in which the first of `values`, the step's labels and the first slot and its flag stand for
            those of each step.
        values: what goes into each layer, and the outputs.
        """
        self._images_shape, self._outputs, self._step = values[0].shape, values[-1], step
        filled = accruing.filled
        self._slots = [(_address(slot), _address(filled[place:])) for place, slot in enumerate(accruing.slots)]
        stand_ins = {IMAGES: values[0], LABELS: step.labels, ACCRUED: accruing.slots[0], FILLED: filled[:1]}
        self._native = compile_calls(calls, stand_ins, WORDS)
        table = np.zeros((STEPS_MAX, WORDS), np.int64)
        self._address, self._table = _address(table), table.data.cast("B")

    def take(self, images: Array, labels: NDArray[np.int32]) -> bool:
        """Whether a batch is one that can be trained on here: others go through `Network.step`."""
        return (
            images.shape == self._images_shape
            and labels.shape == self._step.labels.shape
            and labels.dtype == np.int32
            and images.dtype == np.float32
            and images.flags.c_contiguous
            and labels.flags.c_contiguous
        )

    def run(self, steps: Sequence[StepOf], slot: int) -> list[StepMade]:
        """Makes steps of batches that it takes, in order, accruing in a slot.

        Raises:
            ValueError: a label is out of range; the steps before it were made.
        """
        table, accrued, size = self._table, self._slots[slot], ARGUMENTS.size
        for row, (images, labels, rate) in enumerate(steps):
            addresses = images.__array_interface__["data"][0], labels.__array_interface__["data"][0]
            ARGUMENTS.pack_into(table, row * size, *addresses, *accrued, rate)
        status = self._native(self._address, len(steps))
        if status == REFUSED:
            for _, labels, _ in steps:  # says what is wrong
                self._step.loss.backward(self._outputs, labels, self._step.error)
        if status:
            raise RuntimeError(f"a compiled kernel failed with status {status}")
        return [StepMade(*made) for made in RESULTS.iter_unpack(table[: len(steps) * size])]


def native_steps(
    layers: Sequence[BoundLayer],
    loss: Loss,
    error: Array,
    images_shape: tuple[int, ...],
    after: Sequence[Call],
    gradient: Array,
    accruing: Accruing,
) -> Steps | None:
    """Returns the steps of batches of `len(error)` examples; None if some of a step is not native.

    Args:
        layers: as for a plan, with their gradients in `gradient`.
        error: [n, units], takes the loss's derivative.
        after: calls that are made after backward and before accruing.
    """
    if not can_compile() or not len(error):
        return None
    values = [np.zeros(images_shape, np.float32)]
    step = StepOutputs(loss, np.zeros(len(error), np.int32), np.zeros(2, np.int64), error, [])
    calls = [calls_of(piece) for piece in step_pieces(layers, values, step, Word(LOSS))]
    calls.insert(len(layers) + 1, [NativeCheck(Word(CORRECT))])  # after forward and loss
    accrue = accruing.accrual.native(accruing.slots[0], accruing.weights, gradient, accruing.filled[:1], Word(RATE))
    whole = joined(*calls, list(after), accrue)
    return None if whole is None else Steps(whole, values, step, accruing)


def calls_of(piece: list[Call] | Piece) -> list[Call] | None:
    return piece if isinstance(piece, list) else None


def _address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])

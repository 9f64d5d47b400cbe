"""Several steps of one thread as one native call, if all of a step is native and the batches are available.

Returning to Python costs little by itself, but much more once a step has gone through megabytes and evicted the
interpreter from the caches: about fifty microseconds that hold its lock (see docs/decisions/0013). So a thread that
finds several batches waiting trains on them one after another without returning; each step includes clipping, accruing
and applying to the shared weights (Adam 3.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.layers.losses import Answers, Loss
from adamctl.kernels.native import REFUSED, Call, NativeCheck, Word, can_compile, joined
from adamctl.kernels.native_function import compile_calls
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.operation import Array, Key
from adamctl.kernels.step.plan import BoundLayer, Piece, StepOutputs, step_pieces

STEPS_MAX = 16
FLOAT32 = np.dtype(np.float32)

IMAGES, LABELS, ACCRUED, FILLED, RATE, KEY, LOSS, CORRECT, CLIPPED = range(9)
WORDS = 9
ARGUMENTS = Struct("=qqqqf4xQ24x")  # arrays, addresses, the rate and the key; space for the step's results
RESULTS = Struct("=48xdqq")


class StepBatch(Protocol):
    """A batch of `Steps`: contiguous float32 images and int32 labels, or float32 targets, the learning rate of its
    local update, and its `step_key`."""

    @property
    def images(self) -> Array: ...

    @property
    def labels(self) -> Answers: ...

    @property
    def local_learning_rate(self) -> float: ...

    @property
    def key(self) -> int: ...


StepMade: TypeAlias = tuple[float, int, int]
"""The result of a step: summed loss, correctly classified examples, layers whose gradient was scaled down."""


class Accruing(NamedTuple):
    """Where steps accrue.

    Attributes:
        accrual: makes the calls.
        slots: flat vectors, of which each call chooses one.
        filled: [slots], whether a slot holds anything; written by the step that accrues.
        weights: weights to which the gradient is also applied, if any.
    """

    accrual: Accrual
    slots: Sequence[Array]
    filled: NDArray[np.int64]
    weights: Array | None


class Steps:
    """Makes up to STEPS_MAX steps of whole batches per call."""

    def __init__(
        self, calls: Sequence[Call], values: Sequence[Array], step: StepOutputs, accruing: Accruing, key: Key
    ) -> None:
        """Args:
        calls: calls of one step, in which the first of `values`, the step's labels, the first slot and its flag, and
            `key` are stand-ins for those of each step.
        values: the inputs of each layer, and the outputs.
        """
        self._images_shape, self._outputs, self._step = values[0].shape, values[-1], step
        filled = accruing.filled
        self._slots = [(_address(slot), _address(filled[place:])) for place, slot in enumerate(accruing.slots)]
        stand_ins = {IMAGES: values[0], LABELS: step.labels, ACCRUED: accruing.slots[0], FILLED: filled[:1]}
        self._native = compile_calls(calls, stand_ins, WORDS, objects=(IMAGES, LABELS), in_row={KEY: key})
        table = np.zeros((STEPS_MAX, WORDS), np.int64)
        self._address, self._table = _address(table), table.data.cast("B")

    def take(self, images: Array, labels: Answers) -> bool:
        """Whether a batch can be trained on here: others go through `Network.step`."""
        return (
            images.shape == self._images_shape
            and labels.shape == self._step.labels.shape
            and labels.dtype == self._step.labels.dtype
            and images.dtype == FLOAT32
            and images.flags.c_contiguous
            and labels.flags.c_contiguous
        )

    def run(self, batches: Sequence[StepBatch], slot: int) -> list[StepMade]:
        """Makes the steps of accepted batches, in order, accruing in a slot.

        Raises:
            ValueError: a label is out of range; the steps before it are done.
        """
        table, (accrued, filled), place = self._table, self._slots[slot], 0
        for batch in batches:
            rate, key = batch.local_learning_rate, batch.key
            ARGUMENTS.pack_into(table, place, id(batch.images), id(batch.labels), accrued, filled, rate, key)
            place += ARGUMENTS.size
        status = self._native(self._address, len(batches))
        if status:
            self._failed(status, batches)
        return list(RESULTS.iter_unpack(table[:place]))

    def _failed(self, status: int, batches: Sequence[StepBatch]) -> None:
        if status == REFUSED:
            for batch in batches:  # says what is wrong
                self._step.loss.backward(self._outputs, batch.labels, self._step.error)
        raise RuntimeError(f"a compiled kernel failed with status {status}")


def native_steps(
    layers: Sequence[BoundLayer],
    loss: Loss,
    error: Array,
    images_shape: tuple[int, ...],
    after: Sequence[Call],
    gradient: Array,
    accruing: Accruing,
    key: Key,
) -> Steps | None:
    """Returns the steps of batches of `len(error)` examples; None if a part of a step is not native.

    Args:
        layers: as for a plan, with their gradients in `gradient`.
        error: takes the loss's derivative, [n, units].
        after: calls to make after backward and before accruing.
        key: what the layers' calls read their step's key from.
    """
    if not can_compile() or not len(error):
        return None
    values = [np.zeros(images_shape, np.float32)]
    step = StepOutputs(loss, loss.answers_of(len(error), error.shape[1]), np.zeros(2, np.int64), error, [])
    calls = [calls_of(piece) for piece in step_pieces(layers, values, step, Word(LOSS))]
    calls.insert(len(layers) + 1, [NativeCheck(Word(CORRECT))])  # after forward and loss
    accrue = accruing.accrual.native(accruing.slots[0], accruing.weights, gradient, accruing.filled[:1], Word(RATE))
    whole = joined(*calls, list(after), accrue)
    return None if whole is None else Steps(whole, values, step, accruing, key)


def calls_of(piece: list[Call] | Piece) -> list[Call] | None:
    return piece if isinstance(piece, list) else None


def _address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])

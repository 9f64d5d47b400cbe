"""Several native steps at a call are the same steps one after another through Python, to the bit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from adamctl.kernels import native
from adamctl.kernels.blas import blas
from adamctl.kernels.layers.dropout import Dropout as DropoutOperation
from adamctl.kernels.native import Word
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Network
from adamctl.kernels.step.steps import CLIPPED, STEPS_MAX, Accruing, Steps
from adamctl.model.description import Conv2D, Dense, Dropout, MaxPool2D, Model, Softmax
from tests.kernels.kernel_checks import BACKENDS

pytestmark = pytest.mark.skipif(
    "numba" not in BACKENDS or not native.can_compile() or blas() is None, reason="no compiler or BLAS here"
)

BATCH, SLOTS = 8, 2
LAYERS = (
    Conv2D(5, 3, activation="relu"), MaxPool2D(2), Dropout(0.2), Dense(7, "relu"), Dropout(0.3), Dense(6, "relu"),
    Softmax(4),
)  # fmt: skip
NORM_MAX = 0.3


class Side:
    """Weights, a thread's context and slots."""

    def __init__(self, network: Network) -> None:
        generator = np.random.default_rng(1)
        self.weights = generator.standard_normal(network.flat_size).astype(np.float32) * np.float32(0.3)
        self.context = network.context()
        self.clip = LayerNormClip(network, self.context, NORM_MAX)
        self.slots = [np.full(network.flat_size, np.nan, np.float32) for _ in range(SLOTS)]
        self.filled = np.zeros(SLOTS, np.int64)

    def steps(self, network: Network, local: bool = True) -> Steps | None:
        accruing = Accruing(Accrual("numba"), self.slots, self.filled, self.weights if local else None)
        clipping = self.clip.native(count=Word(CLIPPED))
        return network.native_steps(self.context, self.weights, accruing, clipping)


class Batch(NamedTuple):
    images: np.ndarray
    labels: np.ndarray
    local_learning_rate: float
    key: int


def batches_of(count: int) -> list[Batch]:
    generator = np.random.default_rng(7)
    return [
        Batch(
            generator.standard_normal((BATCH, 9, 8, 2)).astype(np.float32),
            generator.integers(0, 4, BATCH).astype(np.int32),
            0.1 * (number + 1),
            step_key(0, 1, number),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("slot", range(SLOTS))
@pytest.mark.parametrize("groups", [(1,), (3, 2), (STEPS_MAX,)])
def test_steps_together_are_steps_one_by_one(groups: tuple[int, ...], slot: int, local: bool) -> None:
    network = Network(Model((9, 8, 2), LAYERS), BATCH, "numba")
    ours, theirs, accrual = Side(network), Side(network), Accrual("numba")
    steps, batches = ours.steps(network, local), batches_of(sum(groups))
    assert steps is not None
    made, start = [], 0
    for size in groups:
        made += steps.run(batches[start : start + size], slot)
        start += size
    for number, (images, labels, rate, key) in enumerate(batches):
        result, clipped = network.step(theirs.context, theirs.weights, images, labels, False, key), theirs.clip.clipped
        theirs.clip.apply()
        if local:
            accrual.accrue_and_apply(
                theirs.slots[slot], theirs.weights, theirs.context.gradient, rate, number == 0
            )  # fmt: skip
        else:
            accrual.accrue(theirs.slots[slot], theirs.context.gradient, number == 0)
        assert made[number] == (pytest.approx(result.loss * BATCH), result.correct, theirs.clip.clipped - clipped)
    assert theirs.clip.clipped > 0
    np.testing.assert_array_equal(ours.weights, theirs.weights)
    np.testing.assert_array_equal(ours.slots[slot], theirs.slots[slot])
    assert ours.filled.tolist() == [int(place == slot) for place in range(SLOTS)]


def test_a_label_that_is_none_ends_the_steps_there_and_is_named() -> None:
    network = Network(Model((9, 8, 2), LAYERS), BATCH, "numba")
    ours, theirs = Side(network), Side(network)
    batches = batches_of(3)
    batches[1][1][5] = 4
    mine, others = ours.steps(network), theirs.steps(network)
    assert mine is not None and others is not None
    with pytest.raises(ValueError, match=r"labels: expected .*4"):
        mine.run(batches, 0)
    others.run(batches[:1], 0)
    np.testing.assert_array_equal(ours.weights, theirs.weights)
    np.testing.assert_array_equal(ours.slots[0], theirs.slots[0])


def test_batches_of_another_kind_are_not_taken() -> None:
    network = Network(Model((9, 8, 2), LAYERS), BATCH, "numba")
    steps = Side(network).steps(network)
    assert steps is not None
    [(images, labels, *_)] = batches_of(1)
    assert steps.take(images, labels)
    assert not steps.take(images[:5], labels[:5])
    assert not steps.take(images, labels.astype(np.int64))
    assert not steps.take(images, labels[:5])
    assert not steps.take(images.astype(np.float64), labels)
    assert not steps.take(images[::-1], labels)
    assert not steps.take(images, labels[::-1])


@pytest.mark.parametrize("part", ["native_forward", "native_backward"])
def test_where_python_has_a_part_in_a_step_there_are_none(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DropoutOperation, part, lambda *_: None)
    network = Network(Model((9, 8, 2), LAYERS), BATCH, "numba")
    assert Side(network).steps(network) is None
    monkeypatch.undo()
    assert Side(network).steps(network) is not None
    network = Network(Model((9, 8, 2), LAYERS), 0, "numba")
    assert Side(network).steps(network) is None

"""A batch in parts, on their way at a time: together they are one step of the whole batch."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from adamctl.kernels.backend import Backend
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import StageCut, cut_network
from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dropout, Model, Softmax
from adamctl.model.shapes import infer
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import BY_ROWS, EXACT, IMAGES, LOCAL, NINE, ROWS_AND_UNITS, UNEVEN, VECTOR, cut

DROPS = replace(IMAGES, layers=(*IMAGES.layers[:-1], Dropout(0.5), Softmax(5)))
DROPS_CUT = cut(
    DROPS, [("rows", [2, 5]), ("rows", [2, 4]), ("units", [3, 7]), ("units", [3, 7]), ("units", [2, 5])], {0: 1}
)
CASES = {
    "rows and units": (IMAGES, ROWS_AND_UNITS),
    "uneven": (IMAGES, UNEVEN),
    "squared error": (EXACT, ROWS_AND_UNITS),
    "logistic": (LOCAL, BY_ROWS),
    "dropout": (DROPS, DROPS_CUT),
    "nine": (VECTOR, NINE),
}
PARTS = [(8, 4, 2), (8, 2, 3), (7, 3, 2), (4, 4, 2)]
"""Examples of a batch, of a part, and open flights."""


def made(model: Model, examples: int, seed: int) -> tuple[list[Array], Batch]:
    generator = np.random.default_rng(seed)
    tensors = Network(model, 1, "numpy").tensors
    weights = [(0.4 * generator.standard_normal(tensor.shape)).astype(np.float32) for tensor in tensors]
    images = generator.standard_normal((examples, *model.input)).astype(np.float32)
    units = infer(model)[-1].output[0]
    return weights, Batch(images, generator.integers(0, units, examples).astype(np.int32), 77 + seed)


def in_parts(
    model: Model, cuts: list[StageCut], size: int, flights: int, norm_max: float | None, backend: Backend,
    examples: int,
) -> tuple[float, int, int, list[Array]]:  # fmt: skip
    """Returns loss, correct and clipped of a second batch in parts, and the accrued gradient of the whole network."""
    weights, batch = made(model, examples, 3)
    network = cut_network(model, cuts, backend)
    replica = Replica(network, size, flights, weights, clip_norm=norm_max, in_step=True)
    first = 1
    for _ in range(2):  # what the batch before has left must not matter
        found = replica.train_in_parts(batch, first, Random(first))
        first += -(-examples // size)
    return *found, replica.whole_of([own.slots[0] for own in replica.own])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("case", "norm_max"), [*((case, None) for case in CASES), ("uneven", 0.05), ("logistic", 0.05)]
)
def test_the_parts_of_a_batch_are_a_step_of_the_whole(case: str, norm_max: float | None, backend: Backend) -> None:
    model, cuts = CASES[case]
    for examples, size, flights in PARTS if case == "rows and units" and backend == "numpy" else PARTS[:1]:
        weights, batch = made(model, examples, 3)
        network = Network(model, examples, backend)
        context, flat = network.context(), np.zeros(network.flat_size, np.float32)
        for view, weight in zip(network.views(flat), weights, strict=True):
            view[...] = weight
        right = network.step(context, flat, batch.images, batch.labels, key=batch.key)
        clip = LayerNormClip(network, context, norm_max) if norm_max is not None else None
        if clip is not None:
            clip.apply()
        loss, correct, clipped, gradients = in_parts(model, cuts, size, flights, norm_max, backend, examples)
        assert loss == pytest.approx(right.loss * examples, rel=1e-5) and correct == right.correct
        assert clipped == (0 if clip is None else clip.clipped)
        for found, expected in zip(gradients, context.gradient_views, strict=True):
            np.testing.assert_allclose(found, expected, atol=3e-5 * max(float(np.abs(expected).max()), 1e-3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_that_go_on_in_any_order_leave_the_same_bits(backend: Backend) -> None:
    weights, batch = made(IMAGES, 8, 3)
    replica = Replica(cut_network(IMAGES, UNEVEN, backend), 2, 3, weights, clip_norm=0.05, in_step=True)
    found: set[tuple[bytes, ...]] = set()
    for seed in range(8):
        replica.train_in_parts(batch, 1 + 4 * seed, Random(seed))
        found.add(tuple(own.slots[0].tobytes() for own in replica.own))
    assert len(found) == 1

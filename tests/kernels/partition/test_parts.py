"""A batch in parts, on their way at a time: together they are one step of the whole batch."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from adamctl.kernels.backend import Backend
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.partition.program import Batch, Program
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


def in_bundles(replica: Replica, flights: list[tuple[Batch, int | None]], first: int, random: Random) -> list[bytes]:
    """Runs flights from number `first` on that accrue in a slot each, or evaluate (None), in any order.

    Returns what all slots are then.
    """
    for member in replica.members:
        member._accruing[0].filled[:] = 0
    left = [list(enumerate(flights, first)) for _ in replica.members]
    running: list[dict[int, Program]] = [{} for _ in replica.members]
    looks = 0
    while any(left) or any(running):
        looks += 1
        assert looks < 100_000, "every partition waits for another one"
        one = random.randrange(len(replica.members))
        member, own = replica.members[one], running[one]
        if left[one] and left[one][0][0] % replica.flights not in own and random.random() < 0.7:
            number, (batch, slot) = left[one].pop(0)
            context = number % replica.flights
            if slot is None:
                own[context] = member.evaluating(context, len(batch.labels))
            else:
                own[context] = member.training(context, len(batch.labels))
            own[context].begin(number, batch, SlotPlace(slot or 0))
        for context in random.sample(sorted(own), len(own)):
            if own[context].advance():
                del own[context]
    return [slot.tobytes() for own in replica.own for slot in own.slots[:2]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_portions_of_bundles_are_added_in_their_order_whatever_else_is_on_its_way(backend: Backend) -> None:
    """Two bundles in slots of their own, the second with a shorter last portion, and evaluations between."""
    weights, whole = made(IMAGES, 16, 3)
    parts = [Batch(whole.images[at : at + 4], whole.labels[at : at + 4], 0, 4) for at in (0, 4, 8, 12)]
    short = Batch(whole.images[3:4].copy(), whole.labels[3:4].copy(), 0, 4)
    flights = [(parts[0], 0), (parts[1], None), (parts[1], 0), (parts[2], 1), (parts[3], 1), (short, 1), (short, None)]
    network = cut_network(IMAGES, UNEVEN, backend)
    bits = set()
    for count, seeds in ((1, 1), (3, 8)):
        replica = Replica(network, 4, count, weights, in_step=True)
        for seed in range(seeds):
            bits.add(tuple(in_bundles(replica, flights, 1 + seed * len(flights), Random(seed))))
    assert len(bits) == 1
    replica = Replica(network, 4, 2, weights)
    one, other, last = (found for found, _, _ in replica.run([parts[2], parts[3], short]))
    for own, slot in enumerate(range(1, 2 * len(replica.members), 2)):
        views = replica.members[own].tensors.views(np.frombuffer(next(iter(bits))[slot], np.float32))
        for view, *each in zip(views, one[own], other[own], last[own], strict=True):
            np.testing.assert_allclose(view, each[0] + each[1] + each[2] / 4, atol=1e-5)

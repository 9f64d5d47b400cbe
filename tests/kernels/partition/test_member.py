"""Partitions compute together what one network computes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from adamctl.kernels.backend import Backend
from adamctl.kernels.native import can_compile
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import StageCut, cut_network
from adamctl.kernels.slicing import Axis, OutputSlice
from adamctl.kernels.step.network import Network
from adamctl.model.custom.interface import Layer as CustomLayer
from adamctl.model.custom.registry import described
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Local2D,
    LocalContrastNorm,
    Logistic,
    MaxPool2D,
    Model,
    Softmax,
)
from adamctl.model.metric import takes_targets
from adamctl.model.shapes import infer
from tests.custom_layers import Mix, Relu, RowSums, Slope
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.replica import Replica

BATCH = 4  # a power of two: the mean of a batch is exact
MANY = Model((6,), (Dense(4), Softmax(5000)))
MANY_OF_YES_OR_NO = Model((6,), (Dense(4), Logistic(5000)), "logistic")


def cut(model: Model, ways: list[tuple[Axis, list[int]]], joined: dict[int, int] | None = None) -> list[StageCut]:
    """Returns cuts: of each stage the axis and where its parts end; `joined`: convolutions with their pooling."""
    shapes, cuts, layer = infer(model), list[StageCut](), 0
    for axis, ends in ways:
        layers = (layer, layer + 1) if joined and layer in joined else (layer,)
        starts = [0, *ends[:-1]]
        parts = tuple(OutputSlice(axis, a, b) if a < b else None for a, b in zip(starts, ends, strict=True))
        cuts.append(StageCut(layers, parts))
        layer += len(layers)
    assert layer == len(shapes)
    return cuts


IMAGES = Model(
    (11, 9, 2),
    (
        Conv2D(4, 3, padding="same", activation="relu"),
        MaxPool2D(3, 2),
        Conv2D(6, 2, activation="relu", groups=2),
        Dense(7, "relu"),
        Softmax(5),
    ),
)
EXACT = replace(IMAGES, layers=(*IMAGES.layers[:-1], Dense(5)), loss="squared_error")
"""Without a softmax: errors are whole numbers over the batch, so sums in any order are exact."""
ROWS_AND_UNITS = cut(IMAGES, [("rows", [2, 5]), ("rows", [2, 4]), ("units", [3, 7]), ("units", [2, 5])], {0: 1})
UNEVEN = cut(
    IMAGES,
    [("rows", [0, 3, 5]), ("maps", [3, 3, 6]), ("units", [7, 7, 7]), ("units", [2, 3, 5])],
    {0: 1},
)
WHOLES = cut(IMAGES, [("maps", [1, 4]), ("maps", [0, 6]), ("units", [7, 7]), ("units", [0, 5])], {0: 1})
LOCAL = Model(
    (9, 8, 2),
    (Local2D(3, 3, padding="same"), L2Pool2D(2), LocalContrastNorm(3), Dense(6, "tanh"), Logistic(4)),
    "logistic",
)
BY_ROWS = cut(LOCAL, [("rows", [4, 9]), ("rows", [1, 4]), ("rows", [3, 4]), ("units", [2, 6]), ("units", [3, 4])])
PLAIN_FIRST = Model(
    (9, 8, 2), (LocalContrastNorm(3), MaxPool2D(2, 1), Conv2D(3, 3, activation="tanh"), Dense(5)), "squared_error"
)
"""Nobody needs the errors at its first layers, which have no parameters."""
PLAIN_BY_ROWS = cut(PLAIN_FIRST, [("rows", [4, 9]), ("rows", [6, 8]), ("rows", [2, 6]), ("units", [2, 5])])
VECTOR = Model((6,), (Dense(9, "relu"), Dense(5), Dense(4, "relu")), "squared_error")
NINE = cut(
    VECTOR,
    [
        ("units", list(range(1, 10))),
        ("units", [1, 1, 2, 2, 3, 3, 4, 4, 5]),
        ("units", [0, 1, 1, 2, 2, 3, 3, 4, 4]),
    ],
)
OWN = Model(
    (11, 9, 2),
    tuple(
        described(layer) if isinstance(layer, CustomLayer) else layer
        for layer in (RowSums(4), Relu(), Conv2D(4, 3), Slope(), RowSums(3, 2, "valid"), Mix(6), Slope(), Mix(5))
    ),
    "squared_error",
)
OWN_BY_ROWS = cut(
    OWN,
    [("rows", [2, 5, 11]), ("maps", [1, 1, 2]), ("rows", [3, 5, 9]), ("rows", [4, 4, 9]), ("rows", [1, 2, 4]),
     ("units", [3, 4, 6]), ("units", [1, 6, 6]), ("units", [0, 2, 5])],
)  # fmt: skip
REGRESSION = replace(VECTOR, loss="mean_squared_error")
"""Its errors are whole numbers over batch and outputs, both powers of two."""
CASES = {
    "layers of the user's own": (OWN, OWN_BY_ROWS),
    "rows and units": (EXACT, ROWS_AND_UNITS),
    "uneven, with empty parts": (EXACT, UNEVEN),
    "layers whole at one": (EXACT, WHOLES),
    "nine partitions": (VECTOR, NINE),
    "targets": (REGRESSION, NINE),
}


def small_integers(model: Model, seed: int) -> tuple[list[Array], Batch]:
    generator = np.random.default_rng(seed)
    tensors = Network(model, 1, "numpy").tensors
    weights = [generator.integers(-1, 2, tensor.shape).astype(np.float32) for tensor in tensors]
    units = infer(model)[-1].output[0]
    labels = generator.integers(0, units, BATCH).astype(np.int32)
    if takes_targets(model):
        labels = generator.integers(-9, 10, (BATCH, units)).astype(np.float32)  # type: ignore[assignment]
    return weights, Batch(generator.integers(-2, 3, (BATCH, *model.input)).astype(np.float32), labels)


def whole(model: Model, backend: Backend, weights: list[Array], batch: Batch) -> tuple[list[Array], float, int]:
    network = Network(model, BATCH, backend)
    context = network.context()
    flat = np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    made = network.step(context, flat, batch.images.copy(), batch.labels, key=batch.key)
    return [one.copy() for one in context.gradient_views], made.loss * BATCH, made.correct


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_small_integers_give_the_same_bits(case: str, backend: Backend) -> None:
    model, cuts = CASES[case]
    weights, batch = small_integers(model, 3)
    expected, loss, correct = whole(model, backend, weights, batch)
    replica = Replica(cut_network(model, cuts, backend), BATCH, 1, weights)
    ((gradients, found_loss, found_correct),) = replica.run([batch])
    for found, right in zip(replica.whole_gradients(gradients), expected, strict=True):
        np.testing.assert_array_equal(found, right)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert found_correct == correct


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("model", "cuts"),
    [(LOCAL, BY_ROWS), (IMAGES, ROWS_AND_UNITS), (IMAGES, UNEVEN), (PLAIN_FIRST, PLAIN_BY_ROWS)],
)
def test_real_numbers_agree_within_rounding(model: Model, cuts: list[StageCut], backend: Backend) -> None:
    generator = np.random.default_rng(5)
    weights, batch = small_integers(model, 4)
    weights = [weight + generator.standard_normal(weight.shape).astype(np.float32) for weight in weights]
    batch = Batch(generator.standard_normal(batch.images.shape).astype(np.float32), batch.labels)
    expected, loss, _ = whole(model, backend, weights, batch)
    replica = Replica(cut_network(model, cuts, backend), BATCH, 1, weights)
    ((gradients, found_loss, _),) = replica.run([batch])
    assert found_loss == pytest.approx(loss, rel=1e-5)
    for found, right in zip(replica.whole_gradients(gradients), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=2e-5 * max(float(np.abs(right).max()), 1e-3))


@pytest.mark.parametrize("seed", range(12))
def test_delays_change_nothing(seed: int) -> None:
    """Members in any order, several flights open: bit for bit what members in turn find, a flight at a time.

    Some flights are evaluations, which nobody's errors hold back, and some batches are smaller.
    """
    random, backend = Random(seed), BACKENDS[-1]
    model, cuts = random.choice([(IMAGES, UNEVEN), (LOCAL, BY_ROWS), (VECTOR, NINE)])
    network = cut_network(model, cuts, backend)
    weights, _ = small_integers(model, seed)
    weights = [weight * np.float32(0.3) for weight in weights]
    batches = [small_integers(model, 10 * seed + number)[1] for number in range(12)]
    for number in random.sample(range(12), 2):
        batches[number] = Batch(batches[number].images[:3], batches[number].labels[:3])
    evaluations = frozenset(random.sample(range(12), random.choice([0, 4, 9])))
    in_turn = Replica(network, BATCH, 1, weights).run(batches, evaluations=evaluations)
    shuffled = Replica(network, BATCH, random.choice([1, 2, 3, 8]), weights).run(batches, random, evaluations)
    for number, ((one, *made), (other, *others)) in enumerate(zip(in_turn, shuffled, strict=True)):
        assert made == others
        for mine, theirs in zip(one, other, strict=True) if number not in evaluations else ():
            for left, right in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(left, right)


def test_a_smaller_evaluation_is_waited_for_by_the_flight_after_it() -> None:
    """In an evaluation the first partition reads nothing of the second one, whose next error waits for it."""
    model = Model((6,), (Dense(4, "relu"), Dense(3)), "squared_error")
    network = cut_network(model, cut(model, [("units", [4, 4]), ("units", [0, 3])]), BACKENDS[-1])
    weights, batch = small_integers(model, 3)
    smaller = Batch(batch.images[:3], batch.labels[:3])
    replica = Replica(network, BATCH, 1, weights)
    found = replica.run([smaller, smaller, batch, smaller, batch], evaluations=frozenset({0, 3}))
    assert found[2][1:] == found[4][1:]


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_drops_what_it_drops_in_the_whole(backend: Backend) -> None:
    layers = (*EXACT.layers[:2], Dropout(0.5), EXACT.layers[2], Dropout(0.25), *EXACT.layers[3:])
    model = replace(EXACT, layers=layers)
    ways: list[tuple[Axis, list[int]]] = [("rows", [2, 5]), ("rows", [2, 5]), ("rows", [1, 4]), ("rows", [1, 4])]
    cuts = cut(model, [*ways, ("units", [3, 7]), ("units", [2, 5])], {0: 1})
    weights, batch = small_integers(model, 3)
    batch = batch._replace(key=0x1234567887654321)
    expected, loss, _ = whole(model, backend, weights, batch)
    assert loss != whole(model, backend, weights, batch._replace(key=1))[1]
    replica = Replica(cut_network(model, cuts, backend), BATCH, 2, weights)
    ((gradients, found_loss, _),) = replica.run([batch])
    assert found_loss == pytest.approx(loss, rel=1e-6)
    for found, right in zip(replica.whole_gradients(gradients), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=2e-5 * float(np.abs(right).max()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("model", "cuts"), [(IMAGES, UNEVEN), (IMAGES, WHOLES), (LOCAL, BY_ROWS), (VECTOR, NINE), (REGRESSION, NINE)]
)
@pytest.mark.parametrize("examples", [BATCH, 3])
def test_an_evaluation_finds_the_loss_of_the_whole(
    model: Model, cuts: list[StageCut], examples: int, backend: Backend
) -> None:
    weights, batch = small_integers(model, 3)
    batch = Batch(batch.images[:examples], batch.labels[:examples])
    network = Network(model, BATCH, backend)
    flat = np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    loss, correct = network.evaluate(network.context(training=False), flat, batch.images, batch.labels)
    replica = Replica(cut_network(model, cuts, backend), BATCH, 2, weights)
    ((_, found, found_correct),) = replica.run([batch], evaluations=frozenset({0}))
    assert found == pytest.approx(loss, rel=1e-5)
    assert found_correct == correct


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ends", [[1500, 5000], [1500, 1500, 5000], [1, 2, 5000]])
def test_a_large_softmax_exchanges_what_its_parts_found(ends: list[int], backend: Backend) -> None:
    """More units than are gathered."""
    model = Model((6,), (Dense(4, "relu"), Softmax(5000)))
    network = cut_network(model, cut(model, [("units", [min(4, end) for end in ends]), ("units", ends)]), backend)
    assert network.head == "exchange"
    generator = np.random.default_rng(7)
    weights = [generator.standard_normal(tensor.shape).astype(np.float32) for tensor in network.tensors]
    images = generator.standard_normal((BATCH, 6)).astype(np.float32)
    labels = np.array([4999, 0, ends[0] - 1, 2500], np.int32)
    top = weights[2] @ np.maximum(images[0] @ weights[0].T + weights[1], 0) + weights[3]
    labels[0] = int(top.argmax())  # one at least is correct
    expected, loss, correct = whole(model, backend, weights, Batch(images, labels))
    replica = Replica(network, BATCH, 1, weights)
    ((gradients, found_loss, found_correct),) = replica.run([Batch(images, labels)])
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert found_correct == correct
    for found, right in zip(replica.whole_gradients(gradients), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=2e-5 * float(np.abs(right).max()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ends", [[3, 700], [3, 3, 700], [0, 1, 700]])
def test_yes_or_no_outputs_wait_for_nobody_on_the_way_back(ends: list[int], backend: Backend) -> None:
    """Their error is bit for bit that of the whole; loss and correct examples are counted over all parts."""
    model = Model((6,), (Dense(4, "relu"), Logistic(700)), "logistic")
    network = cut_network(model, cut(model, [("units", [4] * len(ends)), ("units", ends)]), backend)
    assert network.head == "separate"
    generator = np.random.default_rng(7)
    weights = [generator.standard_normal(tensor.shape).astype(np.float32) for tensor in network.tensors]
    images = generator.standard_normal((BATCH, 6)).astype(np.float32)
    hidden = np.maximum(images @ weights[0].T + weights[1], 0)
    labels = (hidden @ weights[2].T + weights[3]).argmax(axis=1).astype(np.int32)
    labels[0] = (labels[0] + 350) % 700  # the others are correct
    expected, loss, correct = whole(model, backend, weights, Batch(images, labels))
    assert correct == BATCH - 1
    replica = Replica(network, BATCH, 1, weights)
    ((gradients, found_loss, found_correct),) = replica.run([Batch(images, labels)])
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert found_correct == correct
    found = replica.whole_gradients(gradients)
    np.testing.assert_array_equal(found[3], expected[3])  # the bias's is the error's sum over the batch
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, right, atol=2e-5 * float(np.abs(right).max()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("model", "units"), [(IMAGES, 5), (MANY, 5000), (MANY_OF_YES_OR_NO, 5000)])
def test_a_label_out_of_range_ends_the_flight_with_a_reason(model: Model, units: int, backend: Backend) -> None:
    cuts = ROWS_AND_UNITS if units == 5 else cut(model, [("units", [2, 4]), ("units", [2000, 5000])])
    weights, batch = small_integers(model, 3)
    batch.labels[1] = units
    with pytest.raises(ValueError, match=f"labels: expected .* to {units}"):
        Replica(cut_network(model, cuts, backend), BATCH, 1, weights).run([batch])


@pytest.mark.skipif("numba" not in BACKENDS or not can_compile(), reason="no compiler here")
@pytest.mark.parametrize(("model", "cuts"), [(EXACT, ROWS_AND_UNITS), (IMAGES, ROWS_AND_UNITS), (IMAGES, WHOLES)])
def test_flights_need_no_interpreter(model: Model, cuts: list[StageCut]) -> None:
    """Parts of one unit do: numpy has another method for vectors."""
    weights, _ = small_integers(model, 3)
    replica = Replica(cut_network(model, cuts, "numba"), BATCH, 2, weights)
    assert all(program.is_native for member in replica.members for program in member.programs)


def test_smaller_batches_of_a_context_take_no_gradient_vector_more() -> None:
    weights, _ = small_integers(IMAGES, 3)
    for member in Replica(cut_network(IMAGES, UNEVEN, "numpy"), BATCH, 2, weights).members:
        for context in range(2):
            assert np.shares_memory(member.arrays(context, BATCH - 1).gradient, member.arrays(context).gradient)
        assert not np.shares_memory(member.arrays(0).gradient, member.arrays(1).gradient)

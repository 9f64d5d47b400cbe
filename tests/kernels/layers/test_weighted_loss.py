"""Losses by class: the plain one times the weight of each example's class, value and derivative, however it is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adamctl.kernels.backend import Backend
from adamctl.kernels.layers.make import make_loss, make_training_loss
from adamctl.kernels.native import can_compile
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import StageCut, cut_network
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Logistic, Model, Softmax
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.layers.test_losses import FORMULAS, case, softmax
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import IMAGES, LOCAL, ROWS_AND_UNITS, UNEVEN, cut, small_integers

WEIGHTS = (0.25, 3.0, 0.0, 1.5, 1.0, 0.5)


def weighted(name: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """The formula: each example's loss times its class's weight, summed."""
    return sum(
        WEIGHTS[label] * FORMULAS[name](logits[row : row + 1], labels[row : row + 1])
        for row, label in enumerate(labels)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [np.int32, np.int64])
@pytest.mark.parametrize("name", FORMULAS)
def test_value_and_derivative_follow_the_formula(backend: Backend, width: type, name: str) -> None:
    values, labels = case(batch=9)
    outputs = softmax(values) if name == "cross_entropy" else values
    error = np.zeros(values.shape, np.float32)
    loss = make_training_loss(name, WEIGHTS, backend)  # type: ignore[arg-type]
    found = loss.backward(outputs.astype(np.float32), labels.astype(width), error)
    assert found.loss_sum == pytest.approx(weighted(name, values, labels), rel=1e-5)
    assert found.correct == (outputs.argmax(axis=1) == labels).sum()
    for place in np.ndindex(values.shape):
        step = np.zeros(values.shape)
        step[place] = 1e-5
        higher, lower = (weighted(name, values + sign * step, labels) for sign in (1, -1))
        assert error[place] == pytest.approx((higher - lower) / 2e-5 / len(labels), abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
def test_evaluations_are_not_weighted(backend: Backend, name: str) -> None:
    values, labels = case()
    outputs = softmax(values).astype(np.float32)
    plain, loss = make_loss(name, backend), make_training_loss(name, WEIGHTS, backend)  # type: ignore[arg-type]
    assert loss.evaluate(outputs, labels) == plain.evaluate(outputs, labels)
    np.testing.assert_array_equal(loss.finish(outputs.copy()), plain.finish(outputs.copy()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
def test_weights_of_one_leave_the_plain_loss(backend: Backend, name: str) -> None:
    values, labels = case(batch=8)
    outputs, errors = softmax(values).astype(np.float32), np.zeros((2, 8, 6), np.float32)
    plain, loss = make_loss(name, backend), make_training_loss(name, [1.0] * 6, backend)  # type: ignore[arg-type]
    assert plain.backward(outputs, labels, errors[0]) == pytest.approx(loss.backward(outputs, labels, errors[1]))
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-6)
    assert make_training_loss(name, None, backend).class_weights is None  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
def test_labels_out_of_range_are_refused_and_empty_batches_cost_nothing(backend: Backend, name: str) -> None:
    loss, error = make_training_loss(name, WEIGHTS, backend), np.zeros((1, 6), np.float32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected values in \[0, 6\)"):
        loss.backward(np.full((1, 6), 0.1, np.float32), np.array([6], np.int32), error)
    assert loss.backward(error[:0], np.zeros(0, np.int32), error[:0]) == (0, 0)


# --- whole networks and their partitions ----------------------------------------------------------------------------

MANY = Model((6,), (Dense(4, "relu"), Softmax(5000)))
YES_OR_NO = Model((6,), (Dense(4, "relu"), Logistic(700)), "logistic")


def made(model: Model, seed: int = 3) -> tuple[list[Array], Batch, list[float]]:
    """Returns parameters, a batch and class weights of three decades."""
    generator = np.random.default_rng(seed)
    weights, batch = small_integers(model, seed)
    weights = [weight + 0.3 * generator.standard_normal(weight.shape).astype(np.float32) for weight in weights]
    images = generator.standard_normal(batch.images.shape).astype(np.float32)
    units = len(weights[-1])
    return weights, Batch(images, batch.labels), (10 ** generator.uniform(-1.5, 1.5, units)).tolist()


def step_of_the_whole(
    model: Model, backend: Backend, weights: list[Array], batch: Batch, classes: list[float]
) -> tuple[list[Array], float, bool]:
    """Returns gradients, summed loss, and whether the step is native."""
    network = Network(model, len(batch.labels), backend)
    network.weigh_classes(classes)
    context, flat = network.context(), np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    found = network.step(context, flat, batch.images, batch.labels)
    return context.gradient_views, found.loss * len(batch.labels), network.is_native(flat)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [IMAGES, LOCAL, Model((6,), (Dense(4), Softmax(3)), "squared_error")], ids=str)
def test_a_step_is_the_weighted_sum_of_steps_of_single_examples(model: Model, backend: Backend) -> None:
    weights, batch, classes = made(model)
    gradients, loss, native = step_of_the_whole(model, backend, weights, batch, classes)
    assert native == (backend == "numba" and can_compile())
    single = Network(model, 1, "numpy")
    context, flat = single.context(), np.zeros(single.flat_size, np.float32)
    for view, weight in zip(single.views(flat), weights, strict=True):
        view[...] = weight
    expected, losses = np.zeros(single.flat_size), 0.0
    for row, label in enumerate(batch.labels):
        found = single.step(context, flat, batch.images[row : row + 1], batch.labels[row : row + 1])
        losses += classes[label] * found.loss
        expected += classes[label] * context.gradient / len(batch.labels)
    assert loss == pytest.approx(losses, rel=1e-4)
    for found_part, right in zip(gradients, single.views(expected.astype(np.float32)), strict=True):
        np.testing.assert_allclose(found_part, right, atol=3e-5 * float(np.abs(right).max()))


def halves(model: Model, units: int, ends: list[int]) -> list[StageCut]:
    return cut(model, [("units", [min(4, end) for end in ends]), ("units", ends)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("model", "cuts", "head"),
    [
        (IMAGES, ROWS_AND_UNITS, "gather"),
        (IMAGES, UNEVEN, "gather"),
        (MANY, halves(MANY, 5000, [1500, 5000]), "exchange"),
        (YES_OR_NO, halves(YES_OR_NO, 700, [3, 700]), "separate"),
    ],
    ids=["gathered", "uneven", "exchanged", "separate"],
)
def test_partitions_weigh_as_the_whole_does(model: Model, cuts: list[StageCut], head: str, backend: Backend) -> None:
    weights, batch, classes = made(model)
    expected, loss, _ = step_of_the_whole(model, backend, weights, batch, classes)
    network = replace(cut_network(model, cuts, backend), class_weights=tuple(classes))
    assert network.head == head
    replica = Replica(network, len(batch.labels), 1, weights)
    if backend == "numba" and can_compile():
        assert all(program.is_native for member in replica.members for program in member.programs)
    whole, evaluated = replica.run([batch, batch], evaluations=frozenset({1}))
    assert whole[1] == pytest.approx(loss, rel=1e-5)
    for found, right in zip(replica.whole_gradients(whole[0]), expected, strict=True):
        np.testing.assert_allclose(found, right, atol=3e-5 * max(float(np.abs(right).max()), 1e-3))
    plain = Replica(cut_network(model, cuts, backend), len(batch.labels), 1, weights)
    assert evaluated[1] == pytest.approx(plain.run([batch], evaluations=frozenset({0}))[0][1], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sum_of_losses_is_pytorchs(backend: Backend) -> None:
    """PyTorch's mean divides by the weights of the batch; its sum, over the examples, is ours."""
    torch = pytest.importorskip("torch")
    values, labels = case(batch=9)
    logits = torch.tensor(values, requires_grad=True)
    weight = torch.tensor(WEIGHTS, dtype=torch.float64)
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(labels), weight, reduction="sum") / len(labels)
    theirs.backward()
    error = np.zeros(values.shape, np.float32)
    found = make_training_loss("cross_entropy", WEIGHTS, backend).backward(
        softmax(values).astype(np.float32), labels, error
    )
    assert found.loss_sum / len(labels) == pytest.approx(float(theirs.detach()), rel=1e-5)
    np.testing.assert_allclose(error, logits.grad.numpy(), atol=1e-6)

"""Plans: a step by plan is a step by calls, plans are made anew when what they were made for changes."""

import inspect
from itertools import pairwise

import numpy as np
import pytest

from adamctl.kernels.layers.convpool import ConvPool
from adamctl.kernels.native import can_compile
from adamctl.kernels.operation import Operation
from adamctl.kernels.step import build
from adamctl.kernels.step.network import PLANS_MAX, Network
from adamctl.model.custom.registry import described
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Local2D,
    LocalContrastNorm,
    MaxPool2D,
    Model,
    Softmax,
)
from tests.custom_layers import NativeRelu, Relu
from tests.kernels.kernel_checks import BACKENDS

MODEL = Model(
    (9, 8, 2),
    (
        Conv2D(5, 3, activation="relu"),
        MaxPool2D(2),
        Conv2D(4, 2, activation="tanh"),
        Dropout(0.3),
        Dense(6, "relu"),
        Dense(5, "sigmoid"),
        Softmax(4),
    ),
)


def network_and_weights(backend: str) -> tuple[Network, np.ndarray]:
    network = Network(MODEL, 8, backend)
    return network, np.random.default_rng(1).standard_normal(network.flat_size).astype(np.float32) * np.float32(0.3)


def batch_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(size)
    images = generator.standard_normal((size, 9, 8, 2)).astype(np.float32)
    return images, generator.integers(0, 4, size).astype(np.int32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 5, 8])
def test_a_planned_step_is_what_the_operations_give_one_after_the_other(backend: str, size: int) -> None:
    network, weights = network_and_weights(backend)
    images, labels = batch_of(size)
    planned, direct = network.context(), network.context()
    network.step(planned, weights, images, labels)
    views, values, inputs = network.views(weights), images, []
    for layer, buffers in zip(network.layers, direct.buffers, strict=True):
        inputs.append(values)
        own = [views[index] for index in layer.tensors]
        values = layer.operation.forward(values, own, buffers, True, direct.key)
    error = direct.loss_error[:size]
    network.loss.backward(values, labels, error)
    for position, layer in reversed(list(enumerate(network.layers))):
        own, gradients = ([which[i] for i in layer.tensors] for which in (views, direct.gradient_views))
        error = layer.operation.backward(
            error, inputs[position], own, gradients, direct.buffers[position], position > 0
        )  # fmt: skip
    np.testing.assert_array_equal(planned.gradient, direct.gradient)


@pytest.mark.parametrize("backend", BACKENDS)
def test_plans_follow_the_weights_and_the_batch_size(backend: str) -> None:
    network = Network(
        Model((9, 8, 2), (Conv2D(5, 3, activation="relu"), MaxPool2D(2), Dense(6), Softmax(4))), 8, backend
    )
    weights = np.random.default_rng(1).standard_normal(network.flat_size).astype(np.float32)
    other, context = weights * np.float32(1.5), network.context()
    for chosen, size in ((weights, 8), (other, 8), (weights, 5), (weights, 8)):
        fresh = network.context()
        network.step(context, chosen, *batch_of(size))
        network.step(fresh, chosen, *batch_of(size))
        np.testing.assert_array_equal(context.gradient, fresh.gradient)


def test_a_plan_serves_as_long_as_weights_and_size_are_the_same() -> None:
    network, weights = network_and_weights("numpy")
    context, views = network.context(), network.views(weights)
    network.step(context, views, *batch_of(8))
    plan = context.plans[8]
    network.step(context, views, *batch_of(5))
    network.step(context, views, *batch_of(8))
    assert context.plans[8] is plan
    network.step(context, network.views(weights), *batch_of(8))
    assert context.plans[8] is not plan
    plan = context.plans[8]
    network.step(context, plan.weights, *batch_of(8), skip_dense_gradients=True)
    assert context.plans[8] is not plan


def test_a_context_keeps_few_plans() -> None:
    network = Network(Model((3,), (Softmax(2),)), 3 * PLANS_MAX, "numpy")
    context, weights = network.context(), np.zeros(network.flat_size, np.float32)
    for size in range(1, 3 * PLANS_MAX):
        network.step(context, weights, np.zeros((size, 3), np.float32), np.zeros(size, np.int32))
        assert len(context.plans) <= PLANS_MAX


def test_who_has_a_forward_of_its_own_has_a_bound_one_of_its_own() -> None:
    """Or has none above it but the common one, which calls `forward`; the same of `backward`."""
    named = [value for value in vars(build).values() if inspect.isclass(value) and issubclass(value, Operation)]
    for operation in (*named, ConvPool):
        for name in ("forward", "backward"):
            for owner in operation.__mro__:
                if name in vars(owner) or f"bind_{name}" in vars(owner):
                    bound = getattr(owner, f"bind_{name}")
                    common = getattr(Operation, f"bind_{name}")
                    assert f"bind_{name}" in vars(owner) or bound is common, (
                        f"{owner.__name__} computes {name} anew and inherits a bound one that does not know of it"
                    )
                    break


@pytest.mark.parametrize("backend", BACKENDS)
def test_input_errors_share_memory_and_nothing_is_left_over_from_another_layer(backend: str) -> None:
    network, weights = network_and_weights(backend)
    clean, dirty = network.context(), network.context()
    for buffers in dirty.buffers:
        buffers.input_error.fill(np.nan)
    network.step(clean, weights, *batch_of(5))
    network.step(dirty, weights, *batch_of(5))
    np.testing.assert_array_equal(clean.gradient, dirty.gradient)
    errors = [buffers.input_error for buffers in clean.buffers if buffers.input_error.size]
    assert not any(np.shares_memory(one, other) for one, other in pairwise(errors))
    dense = [position for position, layer in enumerate(network.layers) if layer.is_dense]
    for position in dense[:-1]:
        factor = clean.buffers[position + 1].input_error
        assert not any(
            np.shares_memory(factor, buffers.input_error)
            for buffers in clean.buffers
            if buffers.input_error is not factor
        )
    assert any(np.shares_memory(one, other) for one in errors for other in errors if one is not other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_distbeliefs_layers_leave_nothing_over_either(backend: str) -> None:
    layers = (Conv2D(4, 3, stride=2), Local2D(3, 2), L2Pool2D(2), LocalContrastNorm(3), MaxPool2D(2, 1), Softmax(4))
    network = Network(Model((12, 13, 2), layers), 8, backend)
    weights = np.random.default_rng(1).standard_normal(network.flat_size).astype(np.float32)
    images = np.random.default_rng(2).standard_normal((5, 12, 13, 2)).astype(np.float32)
    clean, dirty = network.context(), network.context()
    for buffers in dirty.buffers:
        buffers.input_error.fill(np.nan)
    for context in (clean, dirty):
        network.step(context, weights, images, np.arange(5) % 4)
    np.testing.assert_array_equal(clean.gradient, dirty.gradient)
    assert np.isfinite(clean.gradient).all()


OWN = Model(
    (9, 8, 2),
    (
        Dropout(0.5), Conv2D(5, 3), MaxPool2D(2), described(NativeRelu()), Dense(6), described(Relu()), Dropout(0.5),
        Softmax(4),
    ),
)  # fmt: skip
"""With a layer of native calls and one of Python alone."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [MODEL, OWN])
def test_prepared_predictions_are_those_that_the_operations_give(model: Model, backend: str) -> None:
    network = Network(model, 8, backend)
    flat, other = np.random.default_rng(1).standard_normal((2, network.flat_size)).astype(np.float32)
    plain, prepared = network.context(training=False), network.context(training=False)
    network.prepare_predictions(prepared, flat)
    for size, weights in [(8, flat), (5, flat), (8, other), (0, flat), (8, flat)]:
        images, labels = batch_of(size)
        expected = network.predict(plain, weights, images).copy()
        np.testing.assert_array_equal(network.predict(prepared, weights, images), expected)
        assert (
            network.measure(prepared, weights, images, labels)[0] == network.measure(plain, weights, images, labels)[0]
        )


@pytest.mark.skipif("numba" not in BACKENDS or not can_compile(), reason="nothing is compiled here")
def test_prepared_predictions_are_one_native_function_where_all_layers_can() -> None:
    for model, whole in ((MODEL, True), (OWN, False)):
        network = Network(model, 8, "numba")
        context, flat = network.context(training=False), np.zeros(network.flat_size, np.float32)
        assert context.forward is None
        network.prepare_predictions(context, flat)
        assert context.forward is not None and context.forward.is_whole is whole

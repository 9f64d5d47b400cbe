"""A whole network: gradients, batches of every size, factors, evaluation, threads, allocations."""

from __future__ import annotations

import gc
import threading
import tracemalloc

import numpy as np
import pytest

from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.step.network import Network, activation_bytes
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
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from tests.kernels.kernel_checks import BACKENDS

SMALL = Model(
    (12, 11, 2),
    (
        Conv2D(6, 3, activation="relu"),
        MaxPool2D(2),
        Conv2D(5, 3, padding="same", activation="tanh"),
        Dropout(0.2),
        Dense(9, "sigmoid"),
        Softmax(4),
    ),
)
MODELS = {
    "convolutions": SMALL,
    "pooling first": Model((9, 9, 1), (MaxPool2D(3, 2), Conv2D(3, 2, stride=2, activation="relu"), Softmax(4))),
    "flat": Model((7,), (Dropout(0.1), Dense(8, "relu"), Softmax(4))),
    "squared error": Model((7,), (Dense(8, "tanh"), Softmax(4)), "squared_error"),
    "local": Model(
        (9, 8, 2), (Local2D(3, 3), L2Pool2D(3, 2), LocalContrastNorm(3), Dropout(0.1), Logistic(4)), "logistic"
    ),
    "squared error, logistic": Model((7,), (Dense(8, "tanh"), Logistic(4)), "squared_error"),
    "squared error, dense": Model((7,), (Dense(8, "tanh"), Dense(4, "sigmoid")), "squared_error"),
}


def initial_weights(network, seed=1):
    flat = np.zeros(network.flat_size, np.float32)
    for number, (tensor, view) in enumerate(zip(network.tensors, network.views(flat), strict=True)):
        view[...] = initial_rows(tensor, number, 0, tensor.shape[0], seed).reshape(tensor.shape)
    return flat


def batch_of(network, size, seed=2):
    generator = np.random.default_rng(seed)
    images = generator.standard_normal((size, *network.model.input)).astype(np.float32)
    return images, generator.integers(0, 4, size).astype(np.int32)


@pytest.mark.parametrize("name", MODELS)
def test_the_layout_is_the_jobs(name):
    network = Network(MODELS[name], 4)
    assert network.tensors == build_layout(MODELS[name], 3).tensors
    assert [t for layer in network.layers for t in layer.tensors] == list(range(len(network.tensors)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_the_slope_of_the_loss(backend, name):
    """Along random directions, float32: the relative error of the slope stays below 2%."""
    network = Network(MODELS[name], 16, backend)
    flat = initial_weights(network)
    images, labels = batch_of(network, 16)
    direction = np.random.default_rng(3).standard_normal(network.flat_size).astype(np.float32)
    direction *= np.abs(flat) > 0  # neither padding nor biases, which start at a kink of relu

    def step(weights):
        context = network.context()
        return network.step(context, weights, images, labels).loss, context.gradient

    _, gradient = step(flat)
    size = np.float32(2e-3)
    numerical = (step(flat + size * direction)[0] - step(flat - size * direction)[0]) / (2 * size)
    assert numerical == pytest.approx(float(gradient @ direction), rel=0.02, abs=2e-3)


@pytest.mark.parametrize("batch", [0, 1, 3, 8])
@pytest.mark.parametrize("name", MODELS)
def test_implementations_agree(name, batch):
    results = []
    for backend in BACKENDS:
        network = Network(MODELS[name], 8, backend)
        context = network.context()
        result = network.step(context, initial_weights(network), *batch_of(network, batch))
        results.append((result, context.gradient))
    for result, gradient in results[1:]:
        assert result == pytest.approx(results[0][0], rel=1e-5)
        np.testing.assert_allclose(gradient, results[0][1], atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_has_no_loss_and_no_gradient(backend):
    network = Network(SMALL, 4, backend)
    context, flat = network.context(), initial_weights(network)
    network.step(context, flat, *batch_of(network, 4))
    assert network.step(context, flat, *batch_of(network, 0)) == (0, 0, False)
    assert not context.gradient.any()
    assert context.factors(4).errors.shape == (0, 9)
    assert network.evaluate(context, flat, *batch_of(network, 0)) == (0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_factors_by_the_models_layer_give_the_weights_gradient(backend):
    network = Network(SMALL, 8, backend)
    context = network.context()
    network.step(context, initial_weights(network), *batch_of(network, 5))
    names = [tensor.name for tensor in network.tensors]
    for layer, name in ((4, "dense1.weight"), (5, "softmax1.weight")):
        factors = context.factors(layer)
        gradient = context.gradient_views[names.index(name)]
        np.testing.assert_allclose(factors.errors.T @ factors.activations, gradient, atol=1e-6)
    assert context.factors(0) is None and context.factors(3) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_dense_gradients_can_be_skipped(backend):
    network = Network(SMALL, 8, backend)
    flat, batch = initial_weights(network), batch_of(network, 5)
    whole, partial = network.context(), network.context()
    network.step(whole, flat, *batch)
    network.step(partial, flat, *batch, skip_dense_gradients=True)
    for tensor, full, part in zip(network.tensors, whole.gradient_views, partial.gradient_views, strict=True):
        skipped = tensor.name in ("dense1.weight", "softmax1.weight")
        np.testing.assert_array_equal(part, np.zeros_like(full) if skipped else full)
    np.testing.assert_array_equal(whole.factors(4).errors, partial.factors(4).errors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batchs_key_alone_decides_what_is_dropped(backend):
    """Whole batches take native steps where there are any, others do not. Each layer drops inputs of its own."""
    network = Network(Model((50,), (Dropout(0.5), Dropout(0.5), Softmax(3))), 8, backend)
    reference, flat = Network(network.model, 8, "numpy"), np.zeros(network.flat_size, np.float32)
    images, labels = np.ones((8, 50), np.float32), np.arange(8) % 3
    context, other, whole = network.context(), reference.context(), {}
    for size, first in ((8, 0), (3, 0), (8, 8), (8, 0)):
        for one, into in ((network, context), (reference, other)):
            one.step(into, flat, images[:size], labels[:size], key=step_key(7, 2, first))
        masks = [[buffers.output[:size] for buffers in into.buffers[:2]] for into in (context, other)]
        np.testing.assert_array_equal(masks[0], masks[1])
        first_kept, both_kept = (mask != 0 for mask in masks[0])
        assert 0.15 < both_kept.mean() < 0.35 < first_kept.mean() < 0.65
        if size == 8:
            whole.setdefault(first, first_kept)
            np.testing.assert_array_equal(first_kept, whole[first])
    assert not np.array_equal(whole[0], whole[8])


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluation_takes_any_number_of_examples_and_drops_nothing_out(backend):
    network = Network(SMALL, 8, backend)
    context, flat = network.context(training=False), initial_weights(network)
    images, labels = batch_of(network, 21)
    loss_sum, correct = network.evaluate(context, network.views(flat), images, labels)
    probabilities = np.concatenate(
        [network.predict(context, flat, images[start : start + 8]).copy() for start in range(0, 21, 8)]
    )
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert correct == (probabilities.argmax(axis=1) == labels).sum()
    assert loss_sum == pytest.approx(-np.log(probabilities[np.arange(21), labels]).sum(), rel=1e-5)
    measured, outputs = network.measure(context, flat, images[8:16], labels[8:16])
    np.testing.assert_array_equal(outputs, probabilities[8:16])
    assert measured == network.evaluate(context, flat, images[8:16], labels[8:16])


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 12, 12, 2), np.float32),
        np.zeros((9, 12, 11, 2), np.float32),
        np.zeros((2, 12, 11, 2)),
        np.zeros((2, 2, 11, 12), np.float32).T[:2],
    ],
)
def test_wrong_images_are_refused(images):
    network = Network(SMALL, 8)
    with pytest.raises(ValueError, match=r"images: expected contiguous float32 \[n <= 8, 12, 11, 2\]; found"):
        network.predict(network.context(), np.zeros(network.flat_size, np.float32), images)


def test_wrong_weights_are_refused():
    network = Network(SMALL, 8)
    with pytest.raises(ValueError, match="parameters: expected shape"):
        network.views(np.zeros(5, np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_the_images_makes_the_loss_nan(backend):
    network = Network(SMALL, 4, backend)
    images, labels = batch_of(network, 2)
    images[0, 5, 5, 0] = np.nan
    assert np.isnan(network.step(network.context(), initial_weights(network), images, labels).loss)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_threads_over_the_same_weights_get_what_one_gets(backend):
    network = Network(SMALL, 8, backend)
    flat = initial_weights(network)
    batches = [batch_of(network, 8, seed) for seed in range(20)]
    alone = network.context()
    expected = [network.step(alone, flat, *batch).loss for batch in batches]
    found: dict[int, list[float]] = {}

    def work(number):
        context = network.context()
        found[number] = [network.step(context, flat, *batch).loss for batch in batches]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: expected, 1: expected}


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_keep_no_memory(backend):
    """Fifty more steps after warming up leave less than 4 KiB behind (Adam 3.2.1)."""
    network = Network(SMALL, 8, backend)
    context, flat = network.context(), initial_weights(network)
    views, batch = network.views(flat), batch_of(network, 8)
    network.compile()
    for _ in range(5):
        network.step(context, views, *batch)
    tracemalloc.start()
    for _ in range(50):  # numpy's own small caches fill up again under the tracer's eyes
        network.step(context, views, *batch)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(50):
        network.step(context, views, *batch)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4096


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_gradient_descent_learns_a_batch_by_heart(backend, name):
    network = Network(MODELS[name], 8, backend)
    context, flat = network.context(), initial_weights(network)
    images, labels = batch_of(network, 8)
    rate = np.float32(2.0 if "squared" in name else 0.3)
    for _ in range(300):
        network.step(context, flat, images, labels)
        flat -= rate * context.gradient
    assert network.evaluate(context, flat, images, labels)[1] == 8


def test_a_context_says_what_it_costs():
    small, large = (activation_bytes(Network(SMALL, batch)) for batch in (8, 16))
    assert small < large < 2 * small + 1

"""One-vs-all logistic outputs: logits with their own loss, probabilities with another; slices; a network of them."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.logistic import Logistic
from adamctl.kernels.slicing import OutputSlice
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Model
from adamctl.model.description import Logistic as LogisticLayer
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, check_slices, run


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_with_its_own_loss_and_probabilities_with_another(backend):
    logits = run(Logistic((2, 3), 5, True, backend), 3, seed=1)
    weight, bias = logits.weights
    np.testing.assert_allclose(logits.outputs, logits.inputs.reshape(3, 6) @ weight.T + bias, atol=1e-5)
    probabilities = run(Logistic((2, 3), 5, False, backend), 3, seed=1)
    np.testing.assert_allclose(probabilities.outputs, 1 / (1 + np.exp(-logits.outputs)), atol=1e-6)


@pytest.mark.parametrize("logits", [True, False])
def test_backward_agrees_with_numerical_gradients(logits):
    check_gradients(lambda backend: Logistic((4,), 7, logits, backend))


@pytest.mark.parametrize("batch", [0, 1, 5])
@pytest.mark.parametrize("logits", [True, False])
def test_implementations_agree(logits, batch):
    check_implementations(lambda backend: Logistic((5,), 11, logits, backend), batch)


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("logits", [True, False])
def test_units_make_the_whole_without_a_finish(logits, batch):
    parts = [OutputSlice("units", 0, 4), OutputSlice("units", 4, 5), OutputSlice("units", 5, 11)]
    check_slices(lambda backend: Logistic((5,), 11, logits, backend), parts, batch)


def weights_of(network):
    return np.random.default_rng(2).standard_normal(network.flat_size).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loss", ["logistic", "squared_error"])
def test_a_network_predicts_probabilities_and_evaluates_its_loss(backend, loss):
    network = Network(Model((6,), (Dense(4, "tanh"), LogisticLayer(5)), loss), 8, backend)
    context, weights = network.context(), weights_of(network)
    inputs = np.random.default_rng(3).standard_normal((8, 6)).astype(np.float32)
    labels = np.arange(8, dtype=np.int64) % 5
    p = network.predict(context, weights, inputs).astype(np.float64)
    assert ((p > 0) & (p < 1)).all() and not np.allclose(p.sum(axis=1), 1)
    targets = np.eye(5)[labels]
    expected = (
        -(targets * np.log(p) + (1 - targets) * np.log(1 - p)) if loss == "logistic" else 0.5 * (targets - p) ** 2
    )
    loss_sum, correct = network.evaluate(context, weights, inputs, labels)
    assert loss_sum == pytest.approx(expected.sum(), rel=1e-4)
    assert correct == (p.argmax(axis=1) == labels).sum()
    result = network.step(context, weights, inputs, labels)
    assert result.loss == pytest.approx(loss_sum / 8, rel=1e-5) and result.correct == correct


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_sent_as_factors_whose_product_is_the_gradient(backend):
    network = Network(Model((6,), (LogisticLayer(300),), "logistic"), 8, backend)
    context, weights = network.context(), weights_of(network)
    inputs = np.random.default_rng(3).standard_normal((8, 6)).astype(np.float32)
    network.step(context, weights, inputs, np.arange(8))
    factors = context.factors(0)
    assert factors is not None
    product = factors.errors.T @ factors.activations
    np.testing.assert_allclose(product, context.gradient_views[0], atol=1e-6)

"""The dense layer: values, gradients, factors."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.dense import Dense
from tests.kernels.kernel_checks import BACKENDS, check_gradients, check_implementations, run

ACTIVATIONS = [None, "relu", "tanh", "sigmoid"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_is_weight_times_input_plus_bias(backend):
    given = run(Dense((2, 3, 2), 5, None, backend), 4, seed=1)
    expected = given.inputs.reshape(4, 12) @ given.weights[0].T + given.weights[1]
    np.testing.assert_allclose(given.outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backward_agrees_with_numerical_gradients(activation):
    check_gradients(lambda backend: Dense((7,), 5, activation, backend))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_implementations_agree(activation, batch):
    check_implementations(lambda backend: Dense((3, 11), 17, activation, backend), batch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_factors_give_the_gradient(backend):
    operation = Dense((4, 3), 6, "tanh", backend)
    given = run(operation, 3, seed=2)
    factors = operation.factors(given.buffers, given.inputs)
    assert factors.errors.shape == (3, 6) and factors.activations.shape == (3, 12)
    np.testing.assert_allclose(factors.errors.T @ factors.activations, given.gradients[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_nobody_needs_is_left_alone(backend):
    operation = Dense((4,), 3, "relu", backend)
    given = run(operation, 2, seed=3)
    bias = np.zeros(3, np.float32)
    operation.backward(given.error.copy(), given.inputs, given.weights, [None, bias], given.buffers)
    np.testing.assert_array_equal(bias, given.gradients[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_nan_out(backend):
    given = run(Dense((4,), 3, "relu", backend), 1, seed=4, poison=True)
    assert np.isnan(given.outputs).all()

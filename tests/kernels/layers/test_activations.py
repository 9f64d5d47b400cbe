"""Activations: their formulas, derivatives from the outputs, NaN and extremes."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.activations import BiasActivation
from tests.kernels.kernel_checks import BACKENDS

FORMULAS = {
    None: (lambda x: x, lambda x: np.ones_like(x)),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_forward_and_backward_follow_the_formula(backend, activation, rows):
    generator = np.random.default_rng(1)
    value, slope = FORMULAS[activation]
    before = generator.standard_normal((rows, 13)) * 3
    bias, error = generator.standard_normal(13), generator.standard_normal((rows, 13))
    outputs, found = before.astype(np.float32), error.astype(np.float32)
    layer, bias_gradient = BiasActivation(activation, backend), np.full(13, 7, np.float32)
    layer.forward(outputs, bias.astype(np.float32))
    layer.backward(outputs, found, bias_gradient)
    np.testing.assert_allclose(outputs, value(before + bias), atol=2e-6)
    np.testing.assert_allclose(found, error * slope(before + bias), atol=1e-5)
    np.testing.assert_allclose(bias_gradient, (error * slope(before + bias)).sum(axis=0), atol=3e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", FORMULAS)
def test_nan_stays_nan_and_extremes_stay_finite(backend, activation):
    layer = BiasActivation(activation, backend)
    outputs = np.array([[np.nan, 1e30, -1e30]], np.float32)
    layer.forward(outputs, np.zeros(3, np.float32))
    assert np.isnan(outputs[0, 0]) and np.isfinite(outputs[0, 1:]).all()
    error = np.array([[np.nan, 1, 1]], np.float32)
    layer.backward(outputs, error, None)
    assert np.isnan(error[0, 0])

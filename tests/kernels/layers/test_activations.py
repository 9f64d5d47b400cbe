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


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_compiled_curves_are_within_three_units_in_the_last_place(activation):
    """Of all sizes: the exact value is computed in float64; -87 and below give what -87 does."""
    if "numba" not in BACKENDS:
        pytest.skip("needs numba")
    generator = np.random.default_rng(5)
    drawn = [generator.standard_normal(200_003) * scale for scale in (1e-30, 1e-5, 0.1, 1, 5, 40)]
    numbers = np.concatenate([*drawn, np.linspace(-87, 87, 300_001)]).astype(np.float32)
    numbers = numbers[np.abs(numbers) <= 87][None]
    found = numbers.copy()
    BiasActivation(activation, "numba").forward(found, np.zeros(found.size, np.float32))
    exact = (
        np.tanh(numbers.astype(np.float64)) if activation == "tanh" else 1 / (1 + np.exp(-numbers.astype(np.float64)))
    )
    units = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact) / units).max() < 3
    assert np.abs(found).max() <= 1 and (activation == "tanh" or found.min() > 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("units", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("activation", FORMULAS)
def test_numbers_at_the_end_of_a_row_are_like_the_others(backend, units, activation):
    layer, column = (
        BiasActivation(activation, backend),
        np.array([[-np.inf], [-200], [-1], [-0.0], [2], [200], [np.inf]]),
    )
    outputs = np.repeat(column, units, axis=1).astype(np.float32)
    layer.forward(outputs, np.zeros(units, np.float32))
    np.testing.assert_array_equal(outputs, np.repeat(outputs[:, :1], units, axis=1))
    low, high = {"tanh": (-1, 1), "sigmoid": (0, 1)}.get(activation, (-np.inf if activation is None else 0, np.inf))
    np.testing.assert_allclose(outputs[[0, -1], 0], [low, high], atol=1e-37)
    np.testing.assert_allclose(outputs[2:5, 0], FORMULAS[activation][0](column[2:5, 0]), rtol=1e-6)

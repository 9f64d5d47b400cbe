"""The replica's own vector work against its formulas, in every implementation, on any length and on parts."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.numeric.accrue import BLOCK, Accrual
from tests.kernels.kernel_checks import BACKENDS

SIZES = [0, 1, 7, 16, 1001, BLOCK - 1, BLOCK, 2 * BLOCK + 3]
LR = 0.3
PRECISE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(params=BACKENDS)
def accrual(request: pytest.FixtureRequest) -> Accrual:
    return Accrual(request.param)


def vectors(size: int, count: int = 3) -> list[np.ndarray]:
    generator = np.random.default_rng(size)
    return [generator.standard_normal(size).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("size", SIZES)
def test_the_first_gradient_is_taken_and_the_next_are_added(accrual: Accrual, size: int) -> None:
    accrued, first, second = vectors(size)
    accrual.accrue(accrued, first, True)
    np.testing.assert_array_equal(accrued, first)
    accrual.accrue(accrued, second, False)
    np.testing.assert_array_equal(accrued, first + second)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [True, False])
def test_accruing_and_applying_at_once_is_both(accrual: Accrual, size: int, first: bool) -> None:
    accrued, weights, gradient = vectors(size)
    expected = gradient if first else accrued + gradient
    applied = weights.astype(np.float64) - np.float32(LR) * gradient.astype(np.float64)
    accrual.accrue_and_apply(accrued, weights, gradient, LR, first)
    np.testing.assert_array_equal(accrued, expected)
    np.testing.assert_allclose(weights, applied, **PRECISE)


@pytest.mark.parametrize("size", SIZES)
def test_a_gradient_is_subtracted_times_the_rate(accrual: Accrual, size: int) -> None:
    weights, gradient = vectors(size, 2)
    expected = weights.astype(np.float64) - np.float32(LR) * gradient.astype(np.float64)
    accrual.subtract_scaled(weights, gradient, LR)
    np.testing.assert_allclose(weights, expected, **PRECISE)


@pytest.mark.parametrize("size", SIZES)
def test_what_was_fetched_is_installed_with_what_it_lacks(accrual: Accrual, size: int) -> None:
    weights, fetched, gradient = vectors(size)
    kept = fetched.copy()
    expected = fetched.astype(np.float64) - np.float32(LR) * gradient.astype(np.float64)
    accrual.install(weights, fetched, gradient, LR)
    np.testing.assert_allclose(weights, expected, **PRECISE)
    np.testing.assert_array_equal(fetched, kept)


def test_a_rate_of_zero_leaves_the_weights_bit_by_bit(accrual: Accrual) -> None:
    weights, gradient = vectors(1001, 2)
    kept, accrued = weights.copy(), np.zeros_like(gradient)
    accrual.accrue_and_apply(accrued, weights, gradient, 0.0, True)
    accrual.subtract_scaled(weights, gradient, 0.0)
    np.testing.assert_array_equal(weights, kept)


def test_the_gradient_is_only_read(accrual: Accrual) -> None:
    accrued, weights, gradient = vectors(BLOCK + 5)
    gradient.flags.writeable = False
    accrual.accrue(accrued, gradient, True)
    accrual.accrue_and_apply(accrued, weights, gradient, LR, False)
    accrual.subtract_scaled(weights, gradient, LR)
    accrual.install(weights, accrued, gradient, LR)


def test_parts_of_a_vector_are_done_in_place(accrual: Accrual) -> None:
    """As re-application does it: one shard's part of the flat vectors, the rest untouched."""
    weights, gradient = vectors(100, 2)
    kept, part = weights.copy(), slice(16, 48)
    accrual.subtract_scaled(weights[part], gradient[part], 1.0)
    np.testing.assert_array_equal(weights[part], kept[part] - gradient[part])
    kept[part] = weights[part]
    np.testing.assert_array_equal(weights, kept)


@pytest.mark.parametrize("size", SIZES)
def test_implementations_agree(size: int) -> None:
    """Over a few steps; a fused multiply-add may round once where two operations round twice."""
    found = []
    for backend in BACKENDS:
        accrual, (accrued, weights, gradient) = Accrual(backend), vectors(size)
        for step in range(5):
            accrual.accrue_and_apply(accrued, weights, gradient * (step + 1), LR / (step + 1), step == 0)
        accrual.subtract_scaled(weights, accrued, LR)
        accrual.install(accrued, weights, gradient, LR)
        found.append((accrued, weights))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_weights_go_on_by_a_multiple_of_their_last_change(accrual: Accrual, size: int) -> None:
    weights, fetched, before = vectors(size)
    kept = fetched.copy()
    expected = fetched + LR * (fetched.astype(np.float64) - before)
    accrual.look_ahead(weights, fetched, before, LR)
    np.testing.assert_allclose(weights, expected, **PRECISE)
    np.testing.assert_array_equal(fetched, kept)
    np.testing.assert_array_equal(before, kept)
    accrual.look_ahead(weights, fetched, before, 0.0)
    np.testing.assert_array_equal(weights, kept)

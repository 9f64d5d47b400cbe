"""Gradients in fixed point: rounded once, in any order, and refused before anything is changed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.kernels.numeric.accumulate import SUM_MAX, Accumulator, accumulate
from tests.kernels.kernel_checks import BACKENDS


def zeros(elements: int, fraction_bits: int = 40) -> Accumulator:
    return Accumulator(np.zeros(elements, np.int64), fraction_bits)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fraction_bits", [20, 40])
@pytest.mark.parametrize("elements", [0, 1, 7, 1000, 40_000])
def test_each_product_is_rounded_to_float64_and_then_half_to_even(
    backend: str, fraction_bits: int, elements: int
) -> None:
    generator = np.random.default_rng(elements)
    part = (generator.standard_normal(elements) * 2.0 ** generator.integers(-60, 10, elements)).astype(np.float32)
    part[::3] = generator.integers(-9, 9, len(part[::3])) * 2.0 ** -(fraction_bits + 1)  # halves
    found = zeros(elements, fraction_bits)
    assert accumulate(found, part, 1.0, 32, backend) is None
    expected = [round(Fraction(float(value)) * 2**fraction_bits) for value in part[:1000]]
    assert found.values[:1000].tolist() == expected
    assert accumulate(found, part, -0.3, 32, backend) is None
    second = [round(Fraction(float(value) * -0.3) * 2**fraction_bits) for value in part[:1000]]
    assert found.values[:1000].tolist() == [a + b for a, b in zip(expected, second, strict=True)]


@given(st.integers(0, 99), st.permutations(range(6)), st.sampled_from([20, 40]))
@settings(max_examples=30, deadline=None)
def test_implementations_and_orders_agree(seed: int, order: list[int], fraction_bits: int) -> None:
    generator = np.random.default_rng(seed)
    parts = generator.standard_normal((6, 100)).astype(np.float32) * np.float32(10.0 ** generator.integers(-9, 2))
    weights = generator.random(6)
    results = []
    for backend in BACKENDS:
        for sequence in (range(6), order):
            found = zeros(100, fraction_bits)
            for number in sequence:
                assert accumulate(found, parts[number], weights[number], 6, backend) is None
            results.append(found.values.tolist())
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf, 3e38])
def test_a_part_with_one_number_that_cannot_be_added_changes_nothing(backend: str, bad: float) -> None:
    found = zeros(30_000)
    found.values[:] = np.arange(30_000)
    part = np.ones(30_000, np.float32)
    part[29_999] = bad
    largest = accumulate(found, part, -0.5, 32, backend)
    assert largest == pytest.approx(abs(float(np.float32(bad)) * 0.5), nan_ok=True)
    assert found.values.tolist() == list(range(30_000))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_parts_that_are_accepted_fill_the_accumulator_without_overflow(backend: str, sign: float) -> None:
    limit = SUM_MAX / 64 / 2.0**40
    found = zeros(1)
    for _ in range(64):
        assert accumulate(found, np.array([sign], np.float32), limit, 64, backend) is None
    assert found.values.tolist() == [int(sign * SUM_MAX)]
    over = math.nextafter(limit, math.inf)
    assert accumulate(found, np.array([sign], np.float32), over, 64, backend) == over
    assert accumulate(zeros(1, 20), np.array([sign], np.float32), over, 64, backend) is None


def test_a_weight_that_is_not_finite_is_refused() -> None:
    found = zeros(3)
    assert math.isnan(accumulate(found, np.ones(3, np.float32), math.nan, 1) or 0)
    assert accumulate(found, np.ones(3, np.float32), math.inf, 1) == math.inf
    assert not found.values.any()


def test_what_does_not_fit_is_refused() -> None:
    one = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="one length; found float32"):
        accumulate(zeros(3), one, 1.0, 1)
    with pytest.raises(ValueError, match="found float64"):
        accumulate(zeros(4), np.ones(4), 1.0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="contiguous"):
        accumulate(zeros(2), one[::2], 1.0, 1)
    with pytest.raises(ValueError, match="found 61 and 1"):
        accumulate(zeros(4, 61), one, 1.0, 1)
    with pytest.raises(ValueError, match="at least one part"):
        accumulate(zeros(4), one, 1.0, 0)

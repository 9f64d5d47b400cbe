"""Vector commands against float64: long arrays, none at all, the same array twice, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adamctl.kernels.numeric import vectors
from tests.kernels.kernel_checks import BACKENDS

SIZES = [0, 1, 7, 16, 1001, vectors.BLOCK, 2 * vectors.BLOCK + 3]


def numbers(size: int, count: int = 2) -> list[np.ndarray]:
    generator = np.random.default_rng(size)
    return [generator.standard_normal(size).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SIZES)
def test_each_command_does_what_its_formula_says(backend: str, size: int) -> None:
    x, y = numbers(size)
    x.flags.writeable = False
    wide_x, wide_y, out = x.astype(np.float64), y.astype(np.float64), np.full(size, 9, np.float32)
    assert vectors.dot(x, y, backend) == pytest.approx(float(wide_x @ wide_y), rel=1e-12, abs=1e-12)
    assert vectors.norm(x, backend) == pytest.approx(float(np.linalg.norm(wide_x)), rel=1e-12)
    vectors.multiply(x, y, out, backend)
    np.testing.assert_array_equal(out, x * y)
    vectors.copy(x, out)
    np.testing.assert_array_equal(out, x)
    vectors.scale(0.3, out, backend)
    np.testing.assert_array_equal(out, x * np.float32(0.3))
    vectors.axpy(-0.7, x, y, backend)
    np.testing.assert_allclose(y, wide_y - float(np.float32(0.7)) * wide_x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_of_ten_million_terms_are_exact_to_twelve_digits(backend: str) -> None:
    """In float32 the running sum would stop at 2^24 times the size of a term."""
    generator = np.random.default_rng(1)
    x = generator.uniform(0.5, 1.5, 10**7).astype(np.float32)
    y = np.full(10**7, 0.1, np.float32)
    expected = math.fsum(x.astype(np.float64) * float(np.float32(0.1)))
    assert vectors.dot(x, y, backend) == pytest.approx(expected, rel=1e-12)
    squares = x.astype(np.float64)
    assert vectors.norm(x, backend) == pytest.approx(math.sqrt(math.fsum(squares * squares)), rel=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [3e38, 1e-38, 1e-45])
def test_squares_beyond_the_range_of_float32_are_summed(backend: str, value: float) -> None:
    x = np.full(5, value, np.float32)
    assert vectors.norm(x, backend) == pytest.approx(float(x[0]) * math.sqrt(5), rel=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_same_array_may_be_read_and_written(backend: str, size: int) -> None:
    x, y = numbers(size)
    kept = x.copy()
    vectors.axpy(2.0, x, x, backend)
    np.testing.assert_allclose(x, 3 * kept, rtol=1e-6)
    vectors.multiply(y, y, y, backend)
    np.testing.assert_array_equal(y, numbers(size)[1] ** 2)
    vectors.multiply(x, y, x, backend)
    np.testing.assert_allclose(x, 3 * kept * y, rtol=1e-5)
    vectors.copy(x, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_go_through(backend: str) -> None:
    x, y = np.array([1, np.nan, np.inf, 0], np.float32), np.ones(4, np.float32)
    assert math.isnan(vectors.dot(x, y, backend)) and math.isnan(vectors.norm(x, backend))
    assert vectors.norm(x[2:], backend) == math.inf
    with np.errstate(invalid="ignore"):
        vectors.axpy(0.0, x, y, backend)
    np.testing.assert_array_equal(y, [1, np.nan, np.nan, 1])


def test_neighbours_in_one_buffer_are_apart_and_overlapping_ranges_are_refused() -> None:
    flat = np.ones(20, np.float32)
    vectors.axpy(1.0, flat[:10], flat[10:])
    with pytest.raises(ValueError, match="axpy: expected arrays that are identical or disjoint"):
        vectors.axpy(1.0, flat[:10], flat[1:11])
    with pytest.raises(ValueError, match=r"copy: .* overlap partly"):
        vectors.copy(flat[5:15], flat[:10])
    with pytest.raises(ValueError, match=r"multiply: .* overlap partly"):
        vectors.multiply(flat[:5], flat[10:15], flat[12:17])
    vectors.dot(flat[:10], flat[1:11])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            np.ones(3, np.float32),
            np.ones(4, np.float32),
            r"dot: expected 1-D arrays of one length; found \[\[3\], \[4\]\]",
        ),
        (np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), "dot: expected 1-D"),
        (np.ones(4, np.float32), np.ones(4), "dot: expected contiguous float32; found float32 .* float64"),
        (np.ones(4, np.float32), np.ones(8, np.float32)[::2], "dot: expected contiguous float32"),
    ],
)
def test_what_does_not_fit_is_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vectors.dot(x, y)

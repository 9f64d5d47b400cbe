"""Rounding with error feedback: what is sent over time adds up; what is not finite is passed on."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.numeric import convert
from adamctl.kernels.numeric.feedback import round_with_feedback
from tests.kernels.kernel_checks import BACKENDS

FORMATS = ["bfloat16", "float16"]
HALF_STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # of a number, at most


def wide(sent: np.ndarray) -> np.ndarray:
    out = np.empty(sent.size, np.float32)
    convert.widened(sent, out, "numpy")
    return out


def buffers(size: int, wire: str) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(size, np.float32), np.full(size, 9, convert.NARROW[wire])


def strange(size: int, seed: int = 3) -> np.ndarray:
    """Numbers of every size, zeros, and a few that are not finite."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(size) * 10.0 ** generator.uniform(-42, 37, size)
    values = values.astype(np.float32)
    values[generator.random(size) < 0.1] = 0
    places = generator.integers(0, max(size, 1), size // 50)
    values[places] = generator.choice(np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38], np.float32), len(places))
    return values


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sum_of_what_was_sent_is_the_sum_of_what_was_given_within_one_rounding(wire: str, backend: str) -> None:
    generator = np.random.default_rng(1)
    size, rounds = 5003, 300
    residual, sent = buffers(size, wire)
    given_sum, sent_sum, plain_sum = np.zeros(size), np.zeros(size), np.zeros(size)
    largest = np.zeros(size)
    for _ in range(rounds):
        values = (0.003 * generator.standard_normal(size) + 0.001).astype(np.float32)
        round_with_feedback(values, residual, sent, backend)
        got = wide(sent)
        given_sum += values
        sent_sum += got
        plain = np.empty(size, convert.NARROW[wire])
        convert.narrowed(values, plain, "numpy")
        plain_sum += wide(plain)
        largest = np.maximum(largest, np.abs(got))
    one_rounding = HALF_STEP[wire] * largest
    exact = rounds * 2.0**-24 * largest  # of the float32 sums before rounding
    assert (np.abs(sent_sum - given_sum) <= one_rounding + exact).all()
    np.testing.assert_allclose(sent_sum + residual, given_sum, atol=exact.max())
    # Without feedback the errors of all rounds remain: at least some element is off by more than one.
    assert (np.abs(plain_sum - given_sum) > one_rounding + exact).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_too_small_for_float16_arrives_once_it_has_added_up(backend: str) -> None:
    values = np.full(40, 1e-9, np.float32)
    residual, sent = buffers(40, "float16")
    total = np.zeros(40)
    for _ in range(1000):
        round_with_feedback(values, residual, sent, backend)
        total += wide(sent)
    assert (total > 0).all()
    np.testing.assert_allclose(total, 1e-6, atol=6e-8)


@pytest.mark.parametrize(("wire", "largest"), [("float16", 65504.0), ("bfloat16", 3.3895314e38)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_beyond_the_range_is_sent_as_the_largest_and_the_rest_later(
    wire: str, largest: float, backend: str
) -> None:
    first = np.array([100_000, -100_000, 66_000, 3.4e38, -3.4028235e38, 1.0], np.float32)
    values, total = first, np.zeros(6)
    residual, sent = buffers(6, wire)
    for _ in range(4):
        round_with_feedback(values, residual, sent, backend)
        assert np.isfinite(wide(sent)).all() and (np.abs(wide(sent)) <= np.float32(largest)).all()
        assert np.isfinite(residual).all()
        total += wide(sent)
        values = np.zeros(6, np.float32)
    if wire == "float16":
        np.testing.assert_allclose(total[:3], first[:3])
        np.testing.assert_allclose(total[3:5], [4 * 65504, -4 * 65504])
    else:
        np.testing.assert_allclose(total, first.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_residual_that_would_overflow_stays_finite(backend: str) -> None:
    values = np.full(3, 3.4e38, np.float32)
    residual, sent = buffers(3, "float16")
    for _ in range(5):
        round_with_feedback(values, residual, sent, backend)
        assert np.isfinite(residual).all() and (wide(sent) == 65504).all()


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_is_passed_on_and_leaves_the_residual_as_it_was(wire: str, backend: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1 / 3], np.float32)
    residual, sent = buffers(4, wire)
    residual[:] = 0.001
    round_with_feedback(values, residual, sent, backend)
    got = wide(sent)
    assert np.isnan(got[0]) and got[1] == np.inf and got[2] == -np.inf and np.isfinite(got[3])
    np.testing.assert_array_equal(residual[:3], np.float32(0.001))
    assert residual[3] != np.float32(0.001)


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize("size", [0, 1, 15, 2047, 2048, 2049, 20_011])
def test_implementations_agree_to_the_bit(wire: str, size: int) -> None:
    results = []
    for backend in BACKENDS:
        residual, sent = buffers(size, wire)
        for seed in range(3):
            round_with_feedback(strange(size, seed), residual, sent, backend)
        results.append((residual.view(np.uint32).copy(), np.isnan(wide(sent)), np.nan_to_num(wide(sent))))
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("values", "residual", "out"),
    [
        (np.zeros(3, np.float32), np.zeros(4, np.float32), np.zeros(3, np.uint16)),
        (np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros(4, np.uint16)),
        (np.zeros(3), np.zeros(3, np.float32), np.zeros(3, np.uint16)),
        (np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros(3, np.int16)),
        (np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32), np.zeros((1, 3), np.uint16)),
        (np.zeros(6, np.float32)[::2], np.zeros(3, np.float32), np.zeros(3, np.float16)),
    ],
)
def test_what_does_not_fit_is_refused_by_name(values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
    with pytest.raises(ValueError, match="round_with_feedback: expected contiguous 1-D float32"):
        round_with_feedback(values, residual, out)

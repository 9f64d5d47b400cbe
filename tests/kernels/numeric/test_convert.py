"""Conversions for the wire: every 16-bit pattern, every kind of tie, special values, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from adamctl.kernels.numeric import convert
from tests.kernels.kernel_checks import BACKENDS

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 3.39e38, 65504, 65519.996, 65520, -65520,
     2.0**-24, 2.0**-25, 1.0000001 * 2.0**-25, 6.1e-5, 5.96e-8, 1.5, -1.5],
    np.float32,
)  # fmt: skip
NANS = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F80FFFF], np.uint32).view(np.float32)


def around(exact: np.ndarray) -> np.ndarray:
    """Returns each number and, between it and its neighbour in the narrow format, both sides of the tie and the tie."""
    bits = exact.view(np.uint32).astype(np.int64)
    near = np.concatenate([bits + offset for offset in (-1, 0, 1)])
    return np.clip(near, 0, 0xFFFFFFFF).astype(np.uint32).view(np.float32)


def bfloat16(values: np.ndarray, backend: str) -> np.ndarray:
    out = np.full(values.size, 77, np.uint16)
    convert.to_bfloat16(values, out, backend)
    return out


def float16(values: np.ndarray, backend: str) -> np.ndarray:
    out = np.full(values.size, 77, np.float16)
    convert.to_float16(values, out, backend)
    return out


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bfloat16_goes_to_float32_and_back(backend: str) -> None:
    wide = np.empty(PATTERNS.size, np.float32)
    convert.from_bfloat16(PATTERNS, wide, backend)
    np.testing.assert_array_equal(wide.view(np.uint32), PATTERNS.astype(np.uint32) << 16)
    back, number = bfloat16(wide, backend), ~np.isnan(wide)
    np.testing.assert_array_equal(back[number], PATTERNS[number])
    np.testing.assert_array_equal(back[~number], PATTERNS[~number] | 0x40)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_float16_goes_to_float32_and_back(backend: str) -> None:
    halves, wide = PATTERNS.view(np.float16), np.empty(PATTERNS.size, np.float32)
    convert.from_float16(halves, wide, backend)
    np.testing.assert_array_equal(wide, halves.astype(np.float32))
    back, number = float16(wide, backend), ~np.isnan(wide)
    np.testing.assert_array_equal(back[number].view(np.uint16), PATTERNS[number])
    assert np.isnan(back[~number]).all()
    np.testing.assert_array_equal(np.signbit(back), np.signbit(halves))


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_is_the_nearest_and_of_two_the_even_one(backend: str) -> None:
    """Around the middle between every two neighbours; against the rule itself, in whole numbers."""
    low = PATTERNS[(PATTERNS & 0x7FFF) < 0x7F80]
    middle = (low.astype(np.uint32) << 16 | 0x8000).view(np.float32)
    values = around(middle)
    ties_up = low + (low & 1)
    np.testing.assert_array_equal(bfloat16(values, backend), np.concatenate([low, ties_up, low + 1]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16_is_the_nearest_and_of_two_the_even_one(backend: str) -> None:
    """As above; the middle of two halves, subnormal ones included, is a float32."""
    low = PATTERNS[(PATTERNS & 0x7FFF) < 0x7BFF]
    halves = np.array([low, low + 1]).view(np.float16).astype(np.float64)
    middle = halves.mean(axis=0).astype(np.float32)
    np.testing.assert_array_equal(middle, halves.mean(axis=0))
    found = float16(around(middle), backend).view(np.uint16)
    np.testing.assert_array_equal(found, np.concatenate([low, low + (low & 1), low + 1]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(backend: str) -> None:
    wide = np.empty(SPECIAL.size, np.float32)
    convert.from_bfloat16(bfloat16(SPECIAL, backend), wide, backend)
    expected = [0, -0.0, np.inf, -np.inf, 0, -0.0, 2.0**-126, np.inf]
    np.testing.assert_array_equal(wide[:8], np.array(expected, np.float32))
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(SPECIAL))
    pairs = zip(wide[8:].tolist(), SPECIAL[8:].tolist(), strict=True)
    assert all(abs(Fraction(found) / Fraction(given) - 1) <= Fraction(1, 256) for found, given in pairs)
    halves = float16(SPECIAL, backend)
    expected = [
        0,
        -0.0,
        np.inf,
        -np.inf,
        0,
        -0.0,
        0,
        np.inf,
        np.inf,
        65504,
        65504,
        np.inf,
        -np.inf,
        2.0**-24,
        0,
        2.0**-24,
    ]
    np.testing.assert_array_equal(halves[:16], np.array(expected, np.float16))
    np.testing.assert_array_equal(np.signbit(halves), np.signbit(SPECIAL))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_nan_and_keeps_its_sign(backend: str) -> None:
    wide = np.empty(NANS.size, np.float32)
    convert.from_bfloat16(bfloat16(NANS, backend), wide, backend)
    halves = float16(NANS, backend)
    for found in (wide, halves):
        assert np.isnan(found).all()
        np.testing.assert_array_equal(np.signbit(found), np.signbit(NANS))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, convert.BLOCK + 5])
def test_implementations_agree_on_any_bits_and_length(size: int) -> None:
    bits = np.random.default_rng(size).integers(0, 1 << 32, size, dtype=np.uint32)
    values = bits.view(np.float32)
    values.flags.writeable = False
    numbers = ~np.isnan(values)
    for backend in BACKENDS[1:]:
        np.testing.assert_array_equal(bfloat16(values, backend), bfloat16(values, "numpy"))
        found, expected = float16(values, backend), float16(values, "numpy")
        np.testing.assert_array_equal(found[numbers].view(np.uint16), expected[numbers].view(np.uint16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_part_of_a_buffer_is_written_and_no_more(backend: str) -> None:
    out = np.full(50, 9, np.uint16)
    convert.to_bfloat16(np.ones(20, np.float32), out[3:23], backend)
    assert (out[:3] == 9).all() and (out[23:] == 9).all() and (out[3:23] == 0x3F80).all()
    convert.to_float16(np.ones(20, np.float32), out[3:23].view(np.float16), backend)
    assert (out[:3] == 9).all() and (out[23:] == 9).all() and (out[3:23] == 0x3C00).all()


def test_what_does_not_fit_is_refused() -> None:
    values, bits, halves = np.ones(4, np.float32), np.ones(4, np.uint16), np.ones(4, np.float16)
    with pytest.raises(
        ValueError, match=r"to_bfloat16: expected contiguous 1-D float32 and uint16 of one length; found"
    ):
        convert.to_bfloat16(values, bits[:3])
    with pytest.raises(ValueError, match="found float64"):
        convert.to_bfloat16(values.astype(np.float64), bits)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="from_bfloat16"):
        convert.from_bfloat16(halves, values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="to_float16"):
        convert.to_float16(np.ones(8, np.float32)[::2], halves)
    with pytest.raises(ValueError, match="from_float16"):
        convert.from_float16(bits, values)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_whether_all_is_finite_is_seen_for_every_pattern(wire: str, backend: str) -> None:
    numbers = PATTERNS.view(convert.NARROW[wire])
    wide = np.empty(PATTERNS.size, np.float32)
    convert.widened(numbers, wide, backend)
    finite = np.isfinite(wide)
    assert convert.all_finite_narrow(np.ascontiguousarray(numbers[finite]), backend)
    for place in (0, 2047, 2048, 4999):
        good = np.zeros(5000, np.uint16)
        for bad in PATTERNS[~finite][::97]:
            good[place] = bad
            assert not convert.all_finite_narrow(good.view(convert.NARROW[wire]), backend)
    assert convert.all_finite_narrow(np.empty(0, convert.NARROW[wire]), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("wire", "largest"), [("float16", 65504.0), ("bfloat16", 3.3895314e38)])
def test_within_range_what_is_finite_stays_finite(wire: str, largest: float, backend: str) -> None:
    values = np.array([3.4028235e38, -3.4028235e38, 1.5, np.nan, np.inf], np.float32)
    out, wide = np.empty(5, convert.NARROW[wire]), np.empty(5, np.float32)
    convert.narrowed_within_range(values, out, backend)
    convert.widened(out, wide, backend)
    np.testing.assert_array_equal(wide, np.array([largest, -largest, 1.5, np.nan, np.inf], np.float32))


def test_the_format_of_an_array_is_known_by_its_type() -> None:
    for name in ("float32", "bfloat16", "float16"):
        assert convert.format_of(np.zeros(1, convert.type_of(name))) == name
    with pytest.raises(ValueError, match="expected float32, float16 or, for bfloat16, uint16; found int32"):
        convert.format_of(np.zeros(1, np.int32))

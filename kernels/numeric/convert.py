"""float32 to and from the two 16-bit formats that halve the bytes on the wire, into given buffers.

bfloat16 is the upper half of a float32: its range, 8 bits of precision; numpy has no such type, so its arrays hold the
bits as uint16. float16 (IEEE 754 binary16) has 11 bits of precision and reaches to 65504, with subnormal numbers down
to 6e-8. Both are rounded to nearest, ties to even; what is too large becomes infinity; NaN stays NaN (its payload may
change); zeros keep their sign. Back to float32 is exact. Arrays are 1-D, contiguous, of equal length, and apart.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.operation import Array

Bits16 = NDArray[np.uint16]
Half = NDArray[np.float16]

BLOCK = 1 << 14  # elements: a block and its temporaries stay in a core's cache

Narrow: TypeAlias = NDArray[Any]
"""float16, or bfloat16 in an array of uint16."""

NARROW: dict[str, type[np.uint16] | type[np.float16]] = {"bfloat16": np.uint16, "float16": np.float16}
LARGEST: dict[str, float] = {"bfloat16": float.fromhex("0x1.fep127"), "float16": 65504.0}
_EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00}


def format_of(array: NDArray[np.generic]) -> str:
    """Returns what an array holds: float32, bfloat16 (as uint16) or float16. Raises ValueError for others."""
    kind = array.dtype
    if kind == np.float32:
        return "float32"
    for name, narrow in NARROW.items():
        if kind == narrow:
            return name
    raise ValueError(f"expected float32, float16 or, for bfloat16, uint16; found {kind}")


def type_of(name: str) -> type[Any]:
    """Returns the type of arrays that hold a format: the inverse of `format_of`."""
    return NARROW.get(name, np.float32)


def narrowed(values: Array, out: Narrow, backend: str | None = None) -> None:
    """`to_bfloat16` or `to_float16`, as the type of `out` says. Raises ValueError as these."""
    (to_float16 if out.dtype == np.float16 else to_bfloat16)(values, out, backend)


def widened(values: Narrow, out: Array, backend: str | None = None) -> None:
    """`from_bfloat16` or `from_float16`, as the type of `values` says. Raises ValueError as these."""
    (from_float16 if values.dtype == np.float16 else from_bfloat16)(values, out, backend)


def narrowed_within_range(values: Array, out: Narrow, backend: str | None = None) -> None:
    """As `narrowed`, but finite values stay finite: beyond the range they become the format's largest number."""
    narrowed(values, out, backend)
    if not all_finite_narrow(out, backend):
        limit = np.float32(LARGEST[format_of(out)])
        is_number = np.isfinite(values)
        narrowed(np.where(is_number, np.clip(values, -limit, limit), values), out, backend)


def all_finite_narrow(values: Narrow, backend: str | None = None) -> bool:
    """Returns False if any number, 1-D and contiguous, is NaN or infinite: all bits of its exponent are set."""
    exponent = np.uint16(_EXPONENT[format_of(values)])
    bits = values.view(np.uint16)
    compiled = compiled_if(choose(backend), "conversions")
    if compiled is not None:
        return bool(compiled.all_below(bits, exponent))
    parts = (bits[start : start + BLOCK] for start in range(0, bits.size, BLOCK))
    return all(bool(((part & exponent) != exponent).all()) for part in parts)


def to_bfloat16(values: Array, out: Bits16, backend: str | None = None) -> None:
    """Writes the bits of each number. Raises ValueError if lengths or types do not fit."""
    _check("to_bfloat16", values, np.float32, out, np.uint16)
    bits = values.view(np.uint32)
    compiled = compiled_if(choose(backend), "conversions")
    if compiled is not None:
        compiled.to_bfloat16(bits, out)
        return
    for start in range(0, bits.size, BLOCK):
        part = bits[start : start + BLOCK]
        upper = part >> np.uint32(16)
        rounded = upper & np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += part
        rounded >>= np.uint32(16)
        is_nan = part & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
        upper |= np.uint32(0x40)
        np.copyto(rounded, upper, where=is_nan)
        np.copyto(out[start : start + BLOCK], rounded, casting="unsafe")


def from_bfloat16(bits: Bits16, out: Array, backend: str | None = None) -> None:
    """Writes each number. Raises ValueError if lengths or types do not fit."""
    _check("from_bfloat16", bits, np.uint16, out, np.float32)
    compiled = compiled_if(choose(backend), "conversions")
    if compiled is not None:
        compiled.from_bfloat16(bits, out.view(np.uint32))
    else:
        np.left_shift(bits, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def to_float16(values: Array, out: Half, backend: str | None = None) -> None:
    """Writes each number rounded. Raises ValueError if lengths or types do not fit."""
    _check("to_float16", values, np.float32, out, np.float16)
    compiled = compiled_if(choose(backend), "conversions")
    if compiled is not None and compiled.HALF:
        compiled.to_float16(values, out.view(np.uint16))
        return
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.copyto(out, values, casting="same_kind")


def from_float16(values: Half, out: Array, backend: str | None = None) -> None:
    """Writes each number. Raises ValueError if lengths or types do not fit."""
    _check("from_float16", values, np.float16, out, np.float32)
    compiled = compiled_if(choose(backend), "conversions")
    if compiled is not None and compiled.HALF:
        compiled.from_float16(values.view(np.uint16), out)
        return
    with np.errstate(invalid="ignore"):
        np.copyto(out, values)


def _check(name: str, values: NDArray[np.generic], given: type, out: NDArray[np.generic], wanted: type) -> None:
    shapes = values.shape == out.shape and values.ndim == 1
    kinds = values.dtype == given and out.dtype == wanted
    if not shapes or not kinds or not values.flags.c_contiguous or not out.flags.c_contiguous:
        raise ValueError(
            f"{name}: expected contiguous 1-D {np.dtype(given)} and {np.dtype(wanted)} of one length; "
            f"found {values.dtype} {list(values.shape)} and {out.dtype} {list(out.shape)}"
        )

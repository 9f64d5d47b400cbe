"""Sums of gradients in fixed point: the same bits whatever the order in which parts of a batch arrive.

A part is the gradient of some examples, its weight their share of the batch. Each element is rounded once, to a
multiple of 2^-fraction_bits, and added as an integer. So that the sum fits int64 in any order, a part is refused if one
of its elements is too large for all parts to be of that size; the evaluation is then repeated with fewer fraction bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import FLOAT32, Array
from adamctl.kernels.backend import choose, compiled_if

INT64 = np.dtype(np.int64)
FRACTION_BITS_MAX = 60
SUM_MAX = 2.0**62
"""Of the accumulator's units; half of int64's range, so that rounding cannot lead out of it."""
BLOCK = 1 << 14  # elements: blocks of float64 and int64 stay in a second-level cache


class Accumulator(NamedTuple):
    """A shard's sum of gradients: int64 [elements] in units of 2^-fraction_bits."""

    values: NDArray[np.int64]
    fraction_bits: int


def accumulate(
    accumulator: Accumulator, part: Array, weight: float, parts_max: int, backend: str | None = None
) -> float | None:
    """Adds rint(part * weight * 2^fraction_bits), half to even, with part * weight rounded to float64; or nothing.

    part: [elements] float32, contiguous, of as many elements as the accumulator. parts_max: how many parts the sum may
    have, this one included.

    Returns:
        None if the part was added; else the largest |part * weight|, which is not finite or more than
        SUM_MAX / parts_max units. Nothing has been changed then. Neither depends on parts that came before.

    Raises:
        ValueError: arrays do not fit, or a number is out of range.
    """
    _check(accumulator, part, parts_max)
    values, scale = accumulator.values, 2.0**accumulator.fraction_bits
    compiled = compiled_if(choose(backend), "rounds")
    if compiled is not None:
        bits = compiled.largest_bits(part)
    else:
        bits = np.abs(part).view(np.uint32).max(initial=0)  # NaN's are above infinity's
    largest = abs(float(np.uint32(bits).view(np.float32)) * weight)
    if not largest * scale <= SUM_MAX / parts_max:
        return largest
    if compiled is not None:
        compiled.accumulate(values, part, weight, scale)
        return None
    for start in range(0, part.size, BLOCK):
        block = slice(start, start + BLOCK)
        values[block] += np.rint(part[block].astype(np.float64) * weight * scale).astype(np.int64)
    return None


def _check(accumulator: Accumulator, part: Array, parts_max: int) -> None:
    values = accumulator.values
    if part.dtype != FLOAT32 or values.dtype != INT64 or part.ndim != 1 or part.shape != values.shape:
        raise ValueError(
            f"accumulate: expected 1-D float32 and int64 of one length; found {part.dtype} {list(part.shape)} and "
            f"{values.dtype} {list(values.shape)}"
        )
    if not (part.flags.c_contiguous and values.flags.c_contiguous and values.flags.writeable):
        raise ValueError("accumulate: expected contiguous arrays, and an accumulator that can be written")
    if not 0 <= accumulator.fraction_bits <= FRACTION_BITS_MAX or parts_max < 1:
        raise ValueError(
            f"accumulate: expected 0 to {FRACTION_BITS_MAX} fraction bits and at least one part; "
            f"found {accumulator.fraction_bits} and {parts_max}"
        )

"""Rounds to 16 bits and carries the rounding error over to the next time: error feedback.

With e the residual of all earlier rounds, initially zero: t = v + e; s = the nearest 16-bit number to t; e = t - s. So
the sum of all s differs from the sum of all v only by the last e, which is at most half a step of the format at the
last s, after any number of rounds (Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et
al., "Error feedback fixes SignSGD", ICML 2019, show that SGD then converges as without rounding).

A value beyond the format's range is sent as the largest number, and the rest stays in e; values too small for the
format accumulate in e. e is exact wherever nothing is beyond the range: both terms are float32 of similar size.
Non-finite values are passed on unchanged and leave e alone, so that the receiver refuses them and later rounds are
correct.
"""

from __future__ import annotations

import numpy as np

from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.numeric import convert
from adamctl.kernels.operation import Array

BLOCK = 1 << 13  # elements: a block of everything stays in cache between numpy's passes


def round_with_feedback(values: Array, residual: Array, out: convert.Narrow, backend: str | None = None) -> None:
    """Writes the 16-bit numbers to send into `out` and the new residual over `residual`; `values` is only read.

    All are 1-D and contiguous, of one length, and apart; values and residual float32, `out` float16, or uint16 for
    bfloat16.

    Raises:
        ValueError: lengths or types do not fit.
    """
    _check(values, residual, out)
    name = convert.format_of(out)
    limit = np.float32(convert.LARGEST[name])
    compiled = compiled_if(choose(backend), "conversions")
    if compiled is not None and (name == "bfloat16" or compiled.HALF):
        run = compiled.feedback_bfloat16 if name == "bfloat16" else compiled.feedback_float16
        run(values, residual, out.view(np.uint16))
        return
    largest = np.finfo(np.float32).max
    for start in range(0, values.size, BLOCK):
        part = slice(start, start + BLOCK)
        value, kept, narrow = values[part], residual[part], out[part]
        is_number = np.abs(value) <= largest
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.clip(value + kept, -largest, largest)
            sent = np.where(is_number, np.clip(total, -limit, limit), value)
            convert.narrowed(sent, narrow, "numpy")
            convert.widened(narrow, sent, "numpy")
            np.copyto(kept, total - sent, where=is_number)


def _check(values: Array, residual: Array, out: convert.Narrow) -> None:
    shapes = values.ndim == 1 and values.shape == residual.shape == out.shape
    types = values.dtype == residual.dtype == np.float32 and out.dtype in (np.uint16, np.float16)
    contiguous = all(array.flags.c_contiguous for array in (values, residual, out))
    if not shapes or not types or not contiguous:
        raise ValueError(
            "round_with_feedback: expected contiguous 1-D float32, float32 and uint16 or float16 of one length; found "
            f"{values.dtype} {list(values.shape)}, {residual.dtype} {list(residual.shape)} and "
            f"{out.dtype} {list(out.shape)}"
        )

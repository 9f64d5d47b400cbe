"""Values as they are on the wire in 16 bits, for tests."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.numeric import convert

SIXTEEN = ["bfloat16", "float16"]


def narrowed(values: np.ndarray, dtype: str) -> np.ndarray:
    out = np.empty(values.size, convert.NARROW[dtype])
    convert.narrowed(np.ascontiguousarray(values, np.float32).reshape(-1), out)
    return out


def widened(values: np.ndarray) -> np.ndarray:
    out = np.empty(values.size, np.float32)
    convert.widened(values, out)
    return out

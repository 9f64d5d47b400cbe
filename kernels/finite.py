"""Says whether an array holds only finite numbers, in one pass and without a temporary of its size."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.operation import Array

BLOCK = 1 << 16


def all_finite(array: Array, backend: str | None = None) -> bool:
    """Returns False if any element is NaN or infinite. Any shape, C-contiguous float32 (float64 through numpy)."""
    flat = array.reshape(-1)
    compiled = compiled_if(choose(backend), "rules")
    if compiled is not None and flat.dtype == np.float32:
        return bool(compiled.all_finite(flat))
    return all(bool(np.isfinite(flat[start : start + BLOCK]).all()) for start in range(0, flat.size, BLOCK))

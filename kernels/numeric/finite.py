"""Checks whether an array holds only finite numbers, in one pass and without a temporary of its size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from adamctl.kernels.array import FLOAT32
from adamctl.kernels.backend import Backend, choose, compiled_if
from adamctl.kernels.operation import Array

BLOCK = 1 << 16


def all_finite(array: Array, backend: str | None = None) -> bool:
    """Returns False if any element is NaN or infinite. Any shape, C-contiguous float32 (float64 through numpy)."""
    return finite_check(choose(backend))(array)


@cache
def finite_check(backend: Backend) -> Callable[[Array], bool]:
    """Returns `all_finite` of one implementation, for frequent callers."""
    compiled = compiled_if(backend, "rules")
    if compiled is None:
        return _all_finite_numpy

    def check(array: Array) -> bool:
        if array.dtype != FLOAT32:
            return _all_finite_numpy(array)
        return bool(compiled.all_finite(array if array.ndim == 1 else array.reshape(-1)))

    return check


def _all_finite_numpy(array: Array) -> bool:
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[start : start + BLOCK]).all()) for start in range(0, flat.size, BLOCK))

"""Vector commands over flat float32 arrays, each in one pass; sums are kept in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN1, OUT1, f32, kernel


@kernel((IN1, IN1))
def dot(x: Any, y: Any) -> float:
    """sum of x[i] * y[i]."""
    total = 0.0
    for i in range(len(x)):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@kernel((f32, IN1, OUT1))
def axpy(alpha: Any, x: Any, y: Any) -> None:
    """y += alpha * x."""
    for i in range(len(x)):
        y[i] += alpha * x[i]

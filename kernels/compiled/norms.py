"""Norms of layers whose gradients lie on several partitions: each finds its part of the squares, and scales its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.accrual import sum_of_squares
from adamctl.kernels.compiled.jit import IN1, OUT1, f64, i64, kernel, readable, writable

PARTS = readable(i64, 2)
"""[n, 3]: start and stop in the gradient, and the number of the layer."""


@kernel((IN1, PARTS, writable(f64, 1)))
def squares_of_layers(gradient: Any, parts: Any, squares: Any) -> None:
    """squares [layers] = the sums of squares of all parts of each layer."""
    squares[:] = 0
    for part in range(len(parts)):
        squares[parts[part, 2]] += sum_of_squares(gradient[parts[part, 0] : parts[part, 1]])


@kernel((writable(f64, 1), readable(f64, 1), i64))
def add_squares(total: Any, squares: Any, is_first: int) -> None:
    """total += squares; total = squares for the first."""
    for layer in range(len(total)):
        total[layer] = squares[layer] if is_first else total[layer] + squares[layer]


@kernel((OUT1, PARTS, readable(f64, 1), f64))
def scale_layers(gradient: Any, parts: Any, squares: Any, norm_max: float) -> int:
    """Scales each layer longer than `norm_max` down to it and returns how many; skips layers that are not finite."""
    clipped = 0
    for layer in range(len(squares)):
        norm = math.sqrt(squares[layer])
        if norm_max < norm and norm < math.inf:
            clipped += 1
            scale = np.float32(norm_max / norm)
            for part in range(len(parts)):
                if parts[part, 2] == layer:
                    values = gradient[parts[part, 0] : parts[part, 1]]
                    for i in range(len(values)):
                        values[i] *= scale
    return clipped

"""Norms of layers whose gradients lie on several partitions: each finds its part of the squares, and scales its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.accrual import sum_of_squares
from adamctl.kernels.compiled.jit import IN1, IN2, OUT1, OUT2, f64, i64, kernel, readable, writable

PARTS = readable(i64, 2)
"""[n, 3]: start and stop in the gradient, and the number of the layer."""


@kernel((IN1, PARTS, writable(f64, 1)))
def squares_of_layers(gradient: Any, parts: Any, squares: Any) -> None:
    """squares [layers] = the sums of squares of all parts of each layer."""
    squares[:] = 0
    for part in range(len(parts)):
        squares[parts[part, 2]] += sum_of_squares(gradient[parts[part, 0] : parts[part, 1]])


@kernel((writable(f64, 1), i64, IN2, IN2))
def add_square_of_product(squares: Any, layer: int, of_errors: Any, of_activations: Any) -> None:
    """squares [layers]: the layer's gets that of E^T A, from E E^T and A A^T [n, n]."""
    total = 0.0
    for i in range(of_errors.shape[0]):
        for j in range(of_errors.shape[1]):
            total += np.float64(of_errors[i, j]) * np.float64(of_activations[i, j])
    squares[layer] += total


@kernel((OUT2, readable(f64, 1), i64, f64))
def scale_errors(errors: Any, squares: Any, layer: int, norm_max: float) -> None:
    """Scales the errors [n, units] of a layer that `scale_layers` scales."""
    norm = math.sqrt(squares[layer])
    if norm_max < norm and norm < math.inf:
        scale = np.float32(norm_max / norm)
        for i in range(errors.shape[0]):
            for j in range(errors.shape[1]):
                errors[i, j] *= scale


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

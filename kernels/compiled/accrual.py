"""The replica's own vector work, each in one pass over memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from adamctl.kernels.compiled.jit import IN1, OUT1, f32, f64, i64, inline, kernel, readable, writable

FLAG = writable(i64, 1)


@inline
def accrue_and_move(accrued: Any, weights: Any, gradient: Any, lr: Any, first: bool) -> None:
    if first:
        for i in range(gradient.size):
            value = gradient[i]
            accrued[i] = value
            weights[i] -= lr * value
    else:
        for i in range(gradient.size):
            value = gradient[i]
            accrued[i] += value
            weights[i] -= lr * value


@kernel((OUT1, OUT1, IN1, f32, types.boolean))
def accrue_and_apply(accrued: Any, weights: Any, gradient: Any, lr: Any, first: bool) -> None:
    """accrued (+)= gradient; weights -= lr * gradient."""
    accrue_and_move(accrued, weights, gradient, lr, first)


@kernel((OUT1, OUT1, IN1, f32, FLAG))
def fill_or_add_and_apply(accrued: Any, weights: Any, gradient: Any, lr: Any, filled: Any) -> None:
    """As `accrue_and_apply`; filled [1] says whether `accrued` holds anything yet, and is then set."""
    accrue_and_move(accrued, weights, gradient, lr, filled[0] == 0)
    filled[0] = 1


@kernel((OUT1, IN1, FLAG))
def fill_or_add(accrued: Any, gradient: Any, filled: Any) -> None:
    """accrued (+)= gradient; `filled` as in `fill_or_add_and_apply`."""
    if filled[0] == 0:
        for i in range(gradient.size):
            accrued[i] = gradient[i]
    else:
        for i in range(gradient.size):
            accrued[i] += gradient[i]
    filled[0] = 1


@kernel((OUT1, IN1, f32))
def subtract_scaled(weights: Any, gradient: Any, lr: Any) -> None:
    """weights -= lr * gradient."""
    for i in range(gradient.size):
        weights[i] -= lr * gradient[i]


@kernel((OUT1, IN1, IN1, f32))
def install(weights: Any, fetched: Any, gradient: Any, lr: Any) -> None:
    """weights = fetched - lr * gradient."""
    for i in range(gradient.size):
        weights[i] = fetched[i] - lr * gradient[i]


@inline
def sum_of_squares(values: Any) -> float:
    """In float64, where no float32's square overflows."""
    total = 0.0
    for i in range(len(values)):
        value = np.float64(values[i])
        total += value * value
    return total


@kernel((OUT1, readable(i64, 2), f64, OUT1))
def clip_layers(gradient: Any, parts: Any, norm_max: float, scales: Any) -> int:
    """Scales each layer longer than `norm_max` down to it and returns how many; skips layers that are not finite.

    parts [n, 3]: start and stop in the gradient, and layer, rising; scales [layers] becomes what each was scaled by.
    """
    clipped, first = 0, 0
    while first < len(parts):
        layer, end, squares = parts[first, 2], first, 0.0
        while end < len(parts) and parts[end, 2] == layer:
            squares += sum_of_squares(gradient[parts[end, 0] : parts[end, 1]])
            end += 1
        norm, scale = math.sqrt(squares), np.float32(1)
        if norm_max < norm and norm < math.inf:
            clipped += 1
            scale = np.float32(norm_max / norm)
            for part in range(first, end):
                values = gradient[parts[part, 0] : parts[part, 1]]
                for i in range(len(values)):
                    values[i] *= scale
        scales[layer] = scale
        first = end
    return clipped

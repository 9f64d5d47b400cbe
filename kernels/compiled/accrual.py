"""The replica's own vector work, each in one pass over memory."""

from __future__ import annotations

from typing import Any

from numba import types

from adamctl.kernels.compiled.jit import IN1, OUT1, f32, kernel


@kernel((OUT1, OUT1, IN1, f32, types.boolean))
def accrue_and_apply(accrued: Any, weights: Any, gradient: Any, lr: Any, first: bool) -> None:
    """accrued (+)= gradient; weights -= lr * gradient."""
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

"""Update rules, each in one pass over memory. `after` may be `before` itself; arrays are 1-D of equal length."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN1, OUT1, f64, kernel


@kernel((IN1, OUT1, IN1))
def add(before: Any, after: Any, delta: Any) -> None:
    """after = before + delta."""
    for i in range(len(after)):
        after[i] = before[i] + delta[i]


@kernel((IN1, OUT1, IN1, f64, f64))
def sgd(before: Any, after: Any, gradient: Any, lr: float, keep: float) -> None:
    """after = before * keep - lr * gradient."""
    rate, kept = np.float32(lr), np.float32(keep)
    for i in range(len(after)):
        after[i] = before[i] * kept - rate * gradient[i]


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def momentum(before: Any, after: Any, velocity: Any, gradient: Any, lr: float, m: float, keep: float) -> None:
    """velocity = m * velocity + gradient; after = before * keep - lr * velocity."""
    rate, mass, kept = np.float32(lr), np.float32(m), np.float32(keep)
    for i in range(len(after)):
        speed = mass * velocity[i] + gradient[i]
        velocity[i] = speed
        after[i] = before[i] * kept - rate * speed


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def nesterov(before: Any, after: Any, velocity: Any, gradient: Any, lr: float, m: float, keep: float) -> None:
    """velocity = m * velocity + gradient; after = before * keep - lr * (gradient + m * velocity)."""
    rate, mass, kept = np.float32(lr), np.float32(m), np.float32(keep)
    for i in range(len(after)):
        speed = mass * velocity[i] + gradient[i]
        velocity[i] = speed
        after[i] = before[i] * kept - rate * (gradient[i] + mass * speed)


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def adagrad(before: Any, after: Any, squares: Any, gradient: Any, lr: float, keep: float, floor: float) -> None:
    """squares += gradient^2; after = before * keep - lr * gradient / sqrt(max(squares, floor))."""
    rate, kept, least = np.float32(lr), np.float32(keep), np.float32(floor)
    for i in range(len(after)):
        slope = gradient[i]
        total = squares[i] + slope * slope
        squares[i] = total
        after[i] = before[i] * kept - rate * slope / np.sqrt(least if total < least else total)


@kernel((IN1,))
def all_finite(values: Any) -> bool:
    """Whether no element is NaN or infinite; looks at 4096 elements at a time and stops at the first bad block."""
    for start in range(0, len(values), 4096):
        bad = 0
        for i in range(start, min(start + 4096, len(values))):
            bad += 0 if abs(values[i]) <= np.float32(3.4028235e38) else 1
        if bad:
            return False
    return True

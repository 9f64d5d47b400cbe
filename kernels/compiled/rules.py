"""Update rules, each in one pass over memory. `after` may be `before` itself; arrays are 1-D of equal length.

Blocks that stay in cache are first copied where the two differ, then updated in place: one loop serves both, gives
the same bits, and the compiler sees no overlap between what it reads and what it writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN1, OUT1, f64, inline, kernel

BLOCK = 4096
LARGEST = np.finfo(np.float32).max


@inline
def copied(before: Any, after: Any, start: int) -> int:
    """Makes after = before from `start` on, one block or to the end; returns where the block ends."""
    stop = min(start + BLOCK, len(after))
    if before.ctypes.data != after.ctypes.data:
        for i in range(start, stop):
            after[i] = before[i]
    return stop


@kernel((IN1, OUT1, IN1))
def add(before: Any, after: Any, delta: Any) -> None:
    """after = before + delta."""
    for start in range(0, len(after), BLOCK):
        for i in range(start, copied(before, after, start)):
            after[i] += delta[i]


@kernel((IN1, OUT1, IN1, f64, f64))
def sgd(before: Any, after: Any, gradient: Any, lr: float, keep: float) -> None:
    """after = before * keep - lr * gradient."""
    rate, kept = np.float32(lr), np.float32(keep)
    for start in range(0, len(after), BLOCK):
        for i in range(start, copied(before, after, start)):
            after[i] = after[i] * kept - rate * gradient[i]


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def momentum(before: Any, after: Any, velocity: Any, gradient: Any, lr: float, m: float, keep: float) -> None:
    """velocity = m * velocity + gradient; after = before * keep - lr * velocity."""
    rate, mass, kept = np.float32(lr), np.float32(m), np.float32(keep)
    for start in range(0, len(after), BLOCK):
        for i in range(start, copied(before, after, start)):
            speed = mass * velocity[i] + gradient[i]
            velocity[i] = speed
            after[i] = after[i] * kept - rate * speed


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def nesterov(before: Any, after: Any, velocity: Any, gradient: Any, lr: float, m: float, keep: float) -> None:
    """velocity = m * velocity + gradient; after = before * keep - lr * (gradient + m * velocity)."""
    rate, mass, kept = np.float32(lr), np.float32(m), np.float32(keep)
    for start in range(0, len(after), BLOCK):
        for i in range(start, copied(before, after, start)):
            speed = mass * velocity[i] + gradient[i]
            velocity[i] = speed
            after[i] = after[i] * kept - rate * (gradient[i] + mass * speed)


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def adagrad(before: Any, after: Any, squares: Any, gradient: Any, lr: float, keep: float, floor: float) -> None:
    """squares += gradient^2; after = before * keep - lr * gradient / sqrt(max(squares, floor))."""
    rate, kept, least = np.float32(lr), np.float32(keep), np.float32(floor)
    for start in range(0, len(after), BLOCK):
        for i in range(start, copied(before, after, start)):
            slope = gradient[i]
            total = squares[i] + slope * slope
            squares[i] = total
            after[i] = after[i] * kept - rate * slope / np.sqrt(least if total < least else total)


@kernel((IN1,))
def all_finite(values: Any) -> bool:
    """Whether no element is NaN or infinite; stops after the first bad block."""
    for start in range(0, len(values), BLOCK):
        bad = 0
        for i in range(start, min(start + BLOCK, len(values))):
            bad += 0 if abs(values[i]) <= LARGEST else 1
        if bad:
            return False
    return True

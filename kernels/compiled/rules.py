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
def copied(before: Any, after: Any, start: int, stop: int) -> Any:
    """Returns after[start:stop], first made equal to that part of `before`."""
    part = after[start:stop]
    if before.ctypes.data != after.ctypes.data:
        old = before[start:stop]
        for i in range(len(part)):
            part[i] = old[i]
    return part


@kernel((IN1, OUT1, IN1))
def add(before: Any, after: Any, delta: Any) -> None:
    """after = before + delta."""
    for start in range(0, len(after), BLOCK):
        stop = min(start + BLOCK, len(after))
        w, d = copied(before, after, start, stop), delta[start:stop]
        for i in range(len(w)):
            w[i] += d[i]


@kernel((IN1, OUT1, IN1, f64, f64))
def sgd(before: Any, after: Any, gradient: Any, lr: float, keep: float) -> None:
    """after = before * keep - lr * gradient."""
    rate, kept = np.float32(lr), np.float32(keep)
    for start in range(0, len(after), BLOCK):
        stop = min(start + BLOCK, len(after))
        w, g = copied(before, after, start, stop), gradient[start:stop]
        for i in range(len(w)):
            w[i] = w[i] * kept - rate * g[i]


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def momentum(before: Any, after: Any, velocity: Any, gradient: Any, lr: float, m: float, keep: float) -> None:
    """velocity = m * velocity + gradient; after = before * keep - lr * velocity."""
    rate, mass, kept = np.float32(lr), np.float32(m), np.float32(keep)
    for start in range(0, len(after), BLOCK):
        stop = min(start + BLOCK, len(after))
        w, v, g = copied(before, after, start, stop), velocity[start:stop], gradient[start:stop]
        for i in range(len(w)):
            speed = mass * v[i] + g[i]
            v[i] = speed
            w[i] = w[i] * kept - rate * speed


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def nesterov(before: Any, after: Any, velocity: Any, gradient: Any, lr: float, m: float, keep: float) -> None:
    """velocity = m * velocity + gradient; after = before * keep - lr * (gradient + m * velocity)."""
    rate, mass, kept = np.float32(lr), np.float32(m), np.float32(keep)
    for start in range(0, len(after), BLOCK):
        stop = min(start + BLOCK, len(after))
        w, v, g = copied(before, after, start, stop), velocity[start:stop], gradient[start:stop]
        for i in range(len(w)):
            speed = mass * v[i] + g[i]
            v[i] = speed
            w[i] = w[i] * kept - rate * (g[i] + mass * speed)


@kernel((IN1, OUT1, OUT1, IN1, f64, f64, f64))
def adagrad(before: Any, after: Any, squares: Any, gradient: Any, lr: float, keep: float, floor: float) -> None:
    """squares += gradient^2; after = before * keep - lr * gradient / sqrt(max(squares, floor))."""
    rate, kept, least = np.float32(lr), np.float32(keep), np.float32(floor)
    for start in range(0, len(after), BLOCK):
        stop = min(start + BLOCK, len(after))
        w, a, g = copied(before, after, start, stop), squares[start:stop], gradient[start:stop]
        for i in range(len(w)):
            total = a[i] + g[i] * g[i]
            a[i] = total
            w[i] = w[i] * kept - rate * g[i] / np.sqrt(least if total < least else total)


@kernel((IN1,))
def all_finite(values: Any) -> bool:
    """Whether no element is NaN or infinite; stops after the first bad block."""
    for start in range(0, len(values), BLOCK):
        part = values[start : min(start + BLOCK, len(values))]
        bad = np.int32(0)
        for i in range(len(part)):
            bad += np.int32(0) if abs(part[i]) <= LARGEST else np.int32(1)
        if bad:
            return False
    return True

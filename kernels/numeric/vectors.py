"""Vector commands that a coordinator sends to the shards of a model (DistBelief 4.2, Sandblaster): BLAS-like, in place.

All arrays are 1-D contiguous float32 of equal length, possibly empty. The array written may also be one of those read;
partly overlapping arrays are rejected. Sums are accumulated in float64: their relative error does not grow with the
length as long as the terms do not cancel. NaN and infinities pass through.
"""

from __future__ import annotations

import math

import numpy as np

from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import address, evaluate

BLOCK = 1 << 14  # elements: a block in double precision stays in a core's cache


def dot(x: Array, y: Array, backend: str | None = None) -> float:
    """Returns the sum of x[i] * y[i]; 0 for empty arrays. Raises ValueError if lengths or types do not fit."""
    _check("dot", x, y)
    compiled = compiled_if(choose(backend), "flat")
    if compiled is not None:
        return float(compiled.dot(x, y))
    parts = (slice(start, start + BLOCK) for start in range(0, x.size, BLOCK))
    return math.fsum(float(np.dot(x[part].astype(np.float64), y[part].astype(np.float64))) for part in parts)


def norm(x: Array, backend: str | None = None) -> float:
    """Returns the Euclidean length of x: the root of `dot(x, x)`, which float64 holds for any finite x."""
    return math.sqrt(dot(x, x, backend))


def axpy(alpha: float, x: Array, y: Array, backend: str | None = None) -> None:
    """y += alpha * x, alpha rounded to float32. Raises ValueError if lengths or types do not fit."""
    _check("axpy", x, y, out=y)
    chosen = choose(backend)
    compiled = compiled_if(chosen, "flat")
    if compiled is not None:
        compiled.axpy(np.float32(alpha), x, y)
    elif chosen == "numexpr":
        _evaluate("y + alpha * x", y, {"x": x, "y": y}, alpha)
    else:
        for start in range(0, x.size, BLOCK):
            part = slice(start, start + BLOCK)
            y[part] += np.float32(alpha) * x[part]


def scale(alpha: float, x: Array, backend: str | None = None) -> None:
    """x *= alpha, alpha rounded to float32; by numpy unless numexpr is forced. Raises ValueError as the others."""
    _check("scale", x)
    if choose(backend) == "numexpr":
        _evaluate("alpha * x", x, {"x": x}, alpha)
    else:
        np.multiply(x, np.float32(alpha), out=x)


def multiply(x: Array, y: Array, out: Array, backend: str | None = None) -> None:
    """out = x * y, element by element, as `scale` is. Raises ValueError if lengths or types do not fit."""
    _check("multiply", x, y, out, out=out)
    if choose(backend) == "numexpr":
        _evaluate("x * y", out, {"x": x, "y": y}, 0.0)
    else:
        np.multiply(x, y, out=out)


def copy(x: Array, out: Array) -> None:
    """out = x, by numpy, which is as fast as any other implementation. Raises ValueError as the others."""
    _check("copy", x, out, out=out)
    np.copyto(out, x)


def _evaluate(expression: str, out: Array, arrays: dict[str, Array], alpha: float) -> None:
    if out.size:
        evaluate(expression, out, arrays, {"alpha": alpha})


def _check(name: str, *arrays: Array, out: Array | None = None) -> None:
    if any(array.shape != arrays[0].shape or array.ndim != 1 for array in arrays):
        raise ValueError(f"{name}: expected 1-D arrays of one length; found {[list(array.shape) for array in arrays]}")
    if any(array.dtype != np.float32 or not array.flags.c_contiguous for array in arrays):
        found = ", ".join(f"{array.dtype} with strides {array.strides}" for array in arrays)
        raise ValueError(f"{name}: expected contiguous float32; found {found}")
    if out is not None:
        distances = [abs(address(array) - address(out)) for array in arrays]
        if any(0 < distance < out.nbytes for distance in distances):
            raise ValueError(f"{name}: expected arrays that are identical or disjoint; found some that overlap partly")

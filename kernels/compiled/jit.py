"""How every compiled kernel is compiled: ahead of use, cached on disk, free of the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types

_njit: Any = numba.njit  # not all of its options are among its types
_cfunc: Any = numba.cfunc

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
RELAXED = {"contract", "reassoc", "nsz", "arcp"}


def kernel(*signatures: Any, relaxed: bool = True) -> Callable[[Function], Function]:
    """Compiles, or loads from the cache, a function for each of these argument types.

    Not `relaxed`, arithmetic is done as it is written, to the bit.
    """

    def compile_now(function: Function) -> Function:
        fastmath = RELAXED if relaxed else False
        jit = _njit(
            list(signatures), nogil=True, cache=True, fastmath=fastmath, error_model="numpy", no_cfunc_wrapper=True
        )
        return cast(Function, jit(function))

    return compile_now


def inline(function: Function) -> Function:
    """Makes a function callable from kernels, and only from them; compiled with each of its callers."""
    jit = _njit(nogil=True, fastmath=RELAXED, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return cast(Function, jit(function))


def callback(function: Any, name: str, arguments: int) -> Any:
    """Compiles, or loads from the cache, a function of so many int64 that is called by its `.address`.

    `name` tells it apart in the cache: two functions of one name are two entries of one file, which processes that
    write it at the same time could mix up.
    """
    function.__qualname__ = function.__name__ = name
    return _cfunc(types.void(*[i64] * arguments), cache=True, error_model="numpy")(function)


def writable(dtype: Any, dimensions: int) -> Any:
    """The type of a C-contiguous array that a kernel writes."""
    return types.Array(dtype, dimensions, "C")


def readable(dtype: Any, dimensions: int) -> Any:
    """The type of a C-contiguous array that a kernel only reads; read-only arrays fit too."""
    return types.Array(dtype, dimensions, "C", readonly=True)


f32, f64, i32, i64 = types.float32, types.float64, types.int32, types.int64
IN1, IN2, IN4 = readable(f32, 1), readable(f32, 2), readable(f32, 4)
OUT1, OUT2, OUT4 = writable(f32, 1), writable(f32, 2), writable(f32, 4)

"""Combines calls of compiled kernels and matrix products into one native function, which holds no interpreter lock.

A step of a small network is about twenty short calls. Each retakes the lock to return to Python, unpack arrays and
leave again: a few microseconds, which threads cannot share. Most of their arguments are the same in every step, so here
they are written into the code: `compile_calls` turns a list of calls into one function, with a few lines of LLVM
instructions around the kernels that are already compiled. Arguments that do differ, such as the address of the images,
are read from a row of a table; the function goes through a given number of rows, one step for each.

Kernels are called as numba calls them: int32 f(result *, error **, arguments), with an array passed as its owner,
parent, number and size of items, address, shape and strides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array
from adamctl.kernels.blas import can_multiply

NativeSteps: TypeAlias = Callable[[int, int], int]
"""Takes the address of a table of int64 words and how many of its rows to process, at least one.

Returns 0, or the status of the first kernel that failed, or REFUSED.
"""

REFUSED = -1  # no kernel's status

RESULT_WORDS = 4
DATA_OFFSET_BYTES = object.__basicsize__  # of an array's address in its object: its first own field
LLVM_MIN = (15, 0, 0)  # the first with opaque pointers


class Word(NamedTuple):
    """A word of the present row: among arguments, the float32 in it; as a result, where the result goes."""

    number: int


class Turn:
    """Among a kernel's arguments: the number of the present turn of the loop, from 0 on."""


TURN = Turn()

Result: TypeAlias = NDArray[np.int64] | Word
"""Words that take a kernel's results."""


class NativeCall(NamedTuple):
    """A compiled kernel and its arguments: arrays, int, float, bool, float32, Word or TURN as its signature says."""

    kernel: Any
    arguments: tuple[Any, ...]
    result: Result | None = None

    def make(self) -> None:
        """Makes the call from Python."""
        self.kernel(*self.arguments)


class NativeCheck(NamedTuple):
    """Ends with REFUSED if a word of the row is negative, which is how kernels report invalid labels."""

    word: Word


class NativeProduct(NamedTuple):
    """out = a b, matrices of float32 or stacks of them.

    In a stack [count, rows, columns] one product follows the other; `a` or `b` may be one matrix for all. Rows of
    `a` and `b`, or columns, and rows of `out` lie in one piece each.
    """

    a: Array
    b: Array
    out: Array


class NativeLoop(NamedTuple):
    """Calls made once per turn, in order. A stack in their products gives each turn the matrix of its number."""

    turns: int
    calls: Sequence[NativeCall | NativeProduct]


Call: TypeAlias = NativeCall | NativeProduct | NativeCheck | NativeLoop


@cache
def can_compile() -> bool:
    """Whether numba's compiler and numpy's arrays are as the instructions here expect."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return False
    probe = np.zeros(1)
    found = ctypes.c_void_p.from_address(id(probe) + DATA_OFFSET_BYTES).value
    if llvm.llvm_version_info < LLVM_MIN or found != address_of(probe):
        return False
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return True


def product(a: Array, b: Array, out: Array) -> list[Call] | None:
    """Returns a product as a call; None without numpy's BLAS, or where numpy does not use it as it does here."""
    return [NativeProduct(a, b, out)] if can_multiply(first_of(a), first_of(b), first_of(out)) else None


def loop(turns: int, *parts: list[Call] | None) -> list[Call] | None:
    """Returns a loop over the calls of all parts, or None if one of them cannot be made natively."""
    calls = joined(*parts)
    if calls is None:
        return None
    return [NativeLoop(turns, [call for call in calls if isinstance(call, (NativeCall, NativeProduct))])]


def joined(*parts: list[Call] | None) -> list[Call] | None:
    """Returns the calls of all parts in order, or None if one of them cannot be made natively."""
    calls: list[Call] = []
    for part in parts:
        if part is None:
            return None
        calls += part
    return calls


def address_of(array: NDArray[Any]) -> int:
    """Returns where an array's first element lies."""
    return int(array.__array_interface__["data"][0])


def first_of(array: Array) -> Array:
    """Returns the first matrix of a stack."""
    return array[0] if array.ndim > 2 else array

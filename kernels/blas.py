"""numpy's own BLAS, so that native steps multiply matrices as `numpy.matmul` does, to the bit.

numpy multiplies matrices by `gemm`, a matrix and a vector by `gemv`, two vectors by `dot`. Where it uses none of them,
for a column times a row, each element is one product, and `gemm` gives the same.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from adamctl.kernels.array import Array

NO_TRANSPOSE, TRANSPOSE = 111, 112  # as in every CBLAS
ROW_MAJOR, COLUMN_MAJOR = 101, 102
SYMBOLS = ("scipy_cblas_s{}64_", "cblas_s{}64_", "scipy_cblas_s{}", "cblas_s{}")
ITEM_BYTES = 4

Routine: TypeAlias = Literal["gemm", "gemv", "dot"]


class Blas(NamedTuple):
    """Addresses of float32 routines, and the bits of their sizes."""

    addresses: dict[Routine, int]
    bits: int


class Size(int):
    """An argument of a routine that counts elements: of the BLAS's own width."""


Argument: TypeAlias = Size | int | float | Array
"""A routine's argument: an array stands for its address, int for int32, float for float32."""


@cache
def blas() -> Blas | None:
    """Returns the routines that numpy uses; None if they are not found."""
    from threadpoolctl import threadpool_info

    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    own = Path(np.__file__).parent.parent  # another package may have its own BLAS
    libraries = [one for one in threadpool_info() if one["user_api"] == "blas" and one["internal_api"] == "openblas"]
    for library in sorted(libraries, key=lambda one: Path(one["filepath"]).parent != own / "numpy.libs"):
        loaded = ctypes.CDLL(library["filepath"])
        for symbol in SYMBOLS:
            names: tuple[Routine, ...] = ("gemm", "gemv", "dot")
            if all(hasattr(loaded, symbol.format(name)) for name in names):
                found = {name: ctypes.cast(getattr(loaded, symbol.format(name)), ctypes.c_void_p) for name in names}
                addresses = {name: pointer.value for name, pointer in found.items() if pointer.value is not None}
                return Blas(addresses, 64 if symbol.endswith("64_") else 32)
    return None


def can_multiply(a: Array, b: Array, out: Array) -> bool:
    """Whether `routine` serves these matrices; not if `a` and `b` share memory, for which numpy has another one."""
    stored = storage(a) is not None and storage(b) is not None and storage(out, "out") is not None
    return blas() is not None and stored and not np.shares_memory(a, b)


def storage(matrix: Array, role: str = "") -> tuple[int, int] | None:
    """Returns whether a matrix is stored row by row or transposed, and the elements from row to row.

    None if neither, or if the matrix is named "out" and transposed.
    """
    rows, columns = matrix.shape
    if matrix.dtype != np.float32 or any(stride % ITEM_BYTES for stride in matrix.strides):
        return None
    row, column = (stride // ITEM_BYTES for stride in matrix.strides)
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return NO_TRANSPOSE, row if rows > 1 else max(columns, 1)
    if role != "out" and (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return TRANSPOSE, column if columns > 1 else max(rows, 1)
    return None


def routine(a: Array, b: Array, out: Array) -> tuple[Routine, list[Argument]]:
    """Returns the routine for out = a b and its arguments; `dot` has only those before the result.

    Raises:
        TypeError: the shapes do not fit each other.
    """
    (rows, inner), columns = a.shape, b.shape[1]
    if b.shape[0] != inner or out.shape != (rows, columns):
        shapes = [list(array.shape) for array in (a, b, out)]
        raise TypeError(f"product: expected [m, k], [k, n] and [m, n]; found {shapes}")
    if inner > 1 and rows == columns == 1:
        return "dot", [Size(inner), a, Size(_step(a[0])), b, Size(_step(b[:, 0]))]
    if inner > 1 and rows == 1:
        return "gemv", _matrix_vector(b.T, a[0], out[0])
    if inner > 1 and columns == 1:
        return "gemv", _matrix_vector(a, b[:, 0], out[:, 0])
    (form_a, step_a), (form_b, step_b), (_, step_out) = _stored(a), _stored(b), _stored(out)
    sizes: list[Argument] = [Size(rows), Size(columns), Size(inner)]
    into: list[Argument] = [0.0, out, Size(step_out)]
    return "gemm", [ROW_MAJOR, form_a, form_b, *sizes, 1.0, a, Size(step_a), b, Size(step_b), *into]


def _matrix_vector(matrix: Array, vector: Array, out: Array) -> list[Argument]:
    """The form of the call is numpy's: which one is used decides about the last bits."""
    form, step = _stored(matrix)
    rows, columns = matrix.shape
    order = COLUMN_MAJOR if form == NO_TRANSPOSE else ROW_MAJOR
    sizes: list[Argument] = [Size(columns), Size(rows)]
    given: list[Argument] = [1.0, matrix, Size(step), vector, Size(_step(vector))]
    return [order, TRANSPOSE, *sizes, *given, 0.0, out, Size(_step(out))]


def _stored(matrix: Array) -> tuple[int, int]:
    found = storage(matrix)
    if found is None:
        raise TypeError(f"product: expected a matrix stored by rows or columns; found strides {matrix.strides}")
    return found


def _step(vector: Array) -> int:
    return vector.strides[0] // ITEM_BYTES

"""Several calls of compiled kernels and matrix products as one native function, which holds no interpreter lock.

A step of a small network is some twenty short calls. Each takes the lock again to come back to Python, unpack its
arrays and go out again: a few microseconds, which threads cannot share. Their arguments are the same in every step but
for the images, so here they are written into the code: `compile_calls` makes of a list of calls one function of the
images' address, by a few lines of LLVM instructions around the kernels that are compiled already.

Kernels are called as numba calls them: int32 f(result *, error **, arguments), an array being its owner, parent, number
and size of items, address, shape and strides.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array

NativeStep: TypeAlias = Callable[[int, float], int]
"""Takes the address of the images and a rate; returns 0, or what the first kernel that failed returned."""

RATE = "rate"
"""Stands for the rate among a call's arguments, where the kernel takes a float32."""

NO_TRANSPOSE, TRANSPOSE, ROW_MAJOR = 111, 112, 101  # as in every CBLAS
SYMBOLS = ("scipy_cblas_sgemm64_", "cblas_sgemm64_", "scipy_cblas_sgemm", "cblas_sgemm")  # of numpy's BLAS
RESULT_WORDS = 4
LLVM_MIN = (15, 0, 0)  # the first that writes pointers without what they point to


class NativeCall(NamedTuple):
    """A compiled kernel and its arguments: arrays, int, float, bool or RATE as its signature says.

    Attributes:
        result: int64 words that take what it returns.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    result: NDArray[np.int64] | None = None


class NativeProduct(NamedTuple):
    """out = a b, matrices of float32, `out` C-contiguous, `a` and `b` that or transposed."""

    a: Array
    b: Array
    out: Array


Call: TypeAlias = NativeCall | NativeProduct


@cache
def can_compile() -> bool:
    """Whether numba's compiler is there, and one of those that the instructions here are written for."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return False
    if llvm.llvm_version_info < LLVM_MIN:
        return False
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return True


def product(a: Array, b: Array, out: Array) -> list[Call] | None:
    """Returns the product as a call, or None where numpy does it another way: without BLAS, of vectors, of itself."""
    matrices = _stored(a) is not None and _stored(b) is not None and out.flags.c_contiguous
    if blas() is None or not matrices or min(*a.shape, *b.shape) < 2 or np.shares_memory(a, b):
        return None
    return [NativeProduct(a, b, out)]


def joined(*parts: list[Call] | None) -> list[Call] | None:
    """Returns the calls of all parts in order, or None if one of them cannot be made natively."""
    calls: list[Call] = []
    for part in parts:
        if part is None:
            return None
        calls += part
    return calls


@cache
def blas() -> tuple[int, int] | None:
    """Returns the address of numpy's own float32 matrix product and the bits of its sizes; None if it is not found."""
    from threadpoolctl import threadpool_info

    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    own = Path(np.__file__).parent.parent  # another package may have brought a BLAS of its own
    libraries = [one for one in threadpool_info() if one["user_api"] == "blas" and one["internal_api"] == "openblas"]
    for library in sorted(libraries, key=lambda one: Path(one["filepath"]).parent != own / "numpy.libs"):
        loaded = ctypes.CDLL(library["filepath"])
        for symbol in SYMBOLS:
            if hasattr(loaded, symbol):
                address = ctypes.cast(getattr(loaded, symbol), ctypes.c_void_p).value
                return (address, 64 if symbol.endswith("64_") else 32) if address is not None else None
    return None


def compile_calls(calls: Sequence[Call], images: Array | None = None) -> NativeStep:
    """Returns one function that makes all calls, one after another, until one fails.

    Whoever keeps the function keeps the calls' arrays: it holds them.

    Args:
        images: an argument of the calls that stands for what the function is given; only its address changes.

    Raises:
        TypeError: an argument does not fit its kernel.
        RuntimeError: `can_compile` is False.
    """
    import llvmlite.binding as llvm

    source = _Source(images)
    for call in calls:
        if isinstance(call, NativeProduct):
            source.add_product(call)
        else:
            source.add_kernel(call)
    if not can_compile():
        raise RuntimeError(f"expected LLVM {LLVM_MIN[0]} or later; found {llvm.llvm_version_info}")
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source.text()), machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_float)(engine.get_function_address("step"))
    function.holds = (engine, source.held)  # type: ignore[attr-defined]
    return function


class _Source:
    """The function's LLVM instructions, line by line.

    Attributes:
        held: what must live as long as the function.
    """

    def __init__(self, images: Array | None) -> None:
        self._images = images
        self._scratch = np.zeros(RESULT_WORDS, np.int64)
        self.held: list[Any] = [images, self._scratch]
        self._lines: list[str] = []
        self._kernels = 0

    def text(self) -> str:
        failures = [f"[%status{n}, %{f'next{n - 1}' if n else 'entry'}]" for n in range(self._kernels)]
        lines = [
            "define i32 @step(i64 %images, float %rate) {",
            "entry:",
            "%at = inttoptr i64 %images to ptr",
            *self._lines,
        ]
        lines.append("ret i32 0")
        if failures:
            lines += ["failed:", f"%code = phi i32 {', '.join(failures)}", "ret i32 %code"]
        return "\n".join([*lines, "}", ""])

    def add_kernel(self, call: NativeCall) -> None:
        types, compiled = _overload(call)
        result = self._scratch if call.result is None else call.result
        self.held += [call.arguments, result, compiled.library]
        error = self._scratch[RESULT_WORDS - 1 :]
        words = [self._pointer(result), self._pointer(error)]
        for kind, argument in zip(types, call.arguments, strict=True):
            words += self._words(kind, argument)
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        number = self._kernels
        self._kernels += 1
        self._lines += [
            f"%status{number} = call i32 {_function(words, address)}",
            f"%good{number} = icmp eq i32 %status{number}, 0",
            f"br i1 %good{number}, label %next{number}, label %failed",
            f"next{number}:",
        ]

    def add_product(self, call: NativeProduct) -> None:
        found = blas()
        assert found is not None
        address, bits = found
        (rows, inner), columns = call.a.shape, call.b.shape[1]
        if call.b.shape[0] != inner or call.out.shape != (rows, columns):
            raise TypeError(
                f"product: expected [m, k], [k, n] and [m, n]; found {[list(array.shape) for array in call]}"
            )
        stored_a, stored_b = _stored(call.a), _stored(call.b)
        assert stored_a is not None and stored_b is not None
        self.held.append(call)
        sizes = [f"i{bits} {size}" for size in (rows, columns, inner)]
        words = [
            f"i32 {ROW_MAJOR}", f"i32 {stored_a[0]}", f"i32 {stored_b[0]}", *sizes, "float 1.0",
            self._pointer(call.a), f"i{bits} {stored_a[1]}", self._pointer(call.b), f"i{bits} {stored_b[1]}",
            "float 0.0", self._pointer(call.out), f"i{bits} {columns}",
        ]  # fmt: skip
        self._lines.append(f"call void {_function(words, address)}")

    def _words(self, kind: Any, argument: Any) -> list[str]:
        if argument is RATE:
            return [f"float %{RATE}"]
        if isinstance(argument, float):
            return [f"double 0x{struct.unpack('<Q', struct.pack('<d', argument))[0]:016X}"]
        if not isinstance(argument, np.ndarray):
            return [f"i64 {int(argument)}"]
        size = [f"i64 {argument.size}", f"i64 {argument.itemsize}"]
        extents = [f"i64 {extent}" for extent in (*argument.shape, *argument.strides)]
        return ["ptr null", "ptr null", *size, self._pointer(argument), *extents]

    def _pointer(self, array: NDArray[Any]) -> str:
        address = int(array.__array_interface__["data"][0])
        if self._images is not None and address == int(self._images.__array_interface__["data"][0]):
            return "ptr %at"
        return f"ptr inttoptr (i64 {address} to ptr)"


def _overload(call: NativeCall) -> tuple[tuple[Any, ...], Any]:
    """Returns a kernel's argument types and compiled code for these arguments."""
    for types, compiled in call.kernel.overloads.items():
        if len(types) == len(call.arguments) and all(map(_fits, types, call.arguments)):
            return types, compiled
    found = [f"{one.dtype} {list(one.shape)}" if isinstance(one, np.ndarray) else repr(one) for one in call.arguments]
    raise TypeError(f"{call.kernel.__name__}: expected {list(call.kernel.overloads)}; found {', '.join(found)}")


def _fits(kind: Any, argument: Any) -> bool:
    if isinstance(argument, np.ndarray):
        alike = getattr(kind, "ndim", -1) == argument.ndim and str(kind.dtype) == str(argument.dtype)
        return alike and bool(argument.flags.c_contiguous)
    if argument is RATE:
        return str(kind) == "float32"
    return str(kind) == {bool: "bool", int: "int64", float: "float64"}.get(type(argument))


def _function(words: Sequence[str], address: int) -> str:
    return f"inttoptr (i64 {address} to ptr)({', '.join(words)})"


def _stored(matrix: Array) -> tuple[int, int] | None:
    """Returns whether a matrix lies in memory row by row or transposed, and the elements from row to row."""
    if matrix.ndim != 2 or matrix.dtype != np.float32:
        return None
    if matrix.flags.c_contiguous:
        return NO_TRANSPOSE, max(matrix.shape[1], 1)
    return (TRANSPOSE, max(matrix.shape[0], 1)) if matrix.flags.f_contiguous else None

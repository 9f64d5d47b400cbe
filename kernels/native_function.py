"""One native function of many calls: the LLVM instructions around kernels that are already compiled.

Kernels are called as numba calls them: int32 f(result *, error **, arguments), with an array passed as its owner,
parent, number and size of items, address, shape and strides.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.blas import Argument, Size, blas, routine
from adamctl.kernels.native import (
    DATA_OFFSET_BYTES,
    LLVM_MIN,
    REFUSED,
    RESULT_WORDS,
    Call,
    NativeCall,
    NativeCheck,
    NativeLoop,
    NativeProduct,
    NativeSteps,
    Result,
    Turn,
    Word,
    address_of,
    can_compile,
    first_of,
)


def compile_calls(
    calls: Sequence[Call],
    stand_ins: Mapping[int, NDArray[Any]] | None = None,
    words: int = 1,
    objects: Collection[int] = (),
    in_row: Mapping[int, NDArray[Any]] | None = None,
) -> NativeSteps:
    """Returns one function that makes all calls in order, for each row of a table, until one fails.

    The function keeps the calls' arrays alive.

    Args:
        stand_ins: word of a row -> argument of the calls that is replaced by the array whose address the word holds.
        words: length of a row.
        objects: the words that hold the `id` of an array instead of its address, which takes Python a microsecond to
            look up.
        in_row: word of a row -> argument of the calls that is replaced by the row itself from that word on.

    Raises:
        TypeError: an argument does not fit its kernel, or is a part of one that is replaced.
        RuntimeError: `can_compile` is False.
    """
    source = Instructions(stand_ins or {}, "row", objects, in_row or {})
    for call in calls:
        source.add(call)
    return compile_function("steps", _over_rows(source, words), source.held)


def compile_function(name: str, text: str, held: Collection[Any]) -> NativeSteps:
    """Returns a function of two int64 that gives an int32, from its LLVM instructions; it keeps `held` alive.

    Raises:
        RuntimeError: `can_compile` is False.
    """
    import llvmlite.binding as llvm

    if not can_compile():
        raise RuntimeError(f"expected LLVM {LLVM_MIN[0]} or later, and numpy's arrays; found {llvm.llvm_version_info}")
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)(engine.get_function_address(name))
    function.holds = (engine, held)  # type: ignore[attr-defined]
    return function


def _over_rows(source: Instructions, words: int) -> str:
    """Returns a function that goes through the rows of a table, each of so many words."""
    lines = [
        "define i32 @steps(i64 %table, i64 %rows) {",
        "entry:",
        "br label %row",
        "row:",
        f"%number = phi i64 [0, %entry], [%following, %{source.block}]",
        f"%offset = mul i64 %number, {8 * words}",
        "%place = add i64 %table, %offset",
        "%words = inttoptr i64 %place to ptr",
        *source.lines,
        "%following = add i64 %number, 1",
        "%more = icmp slt i64 %following, %rows",
        "br i1 %more, label %row, label %done",
        "done:",
        "ret i32 0",
        *source.failed(),
        "}",
    ]
    return "\n".join([*lines, ""])


class Instructions:
    """A function's LLVM instructions, line by line; `%words` is the address of the row that it works on.

    Attributes:
        lines: the instructions.
        block: the name of the block that the next instruction is in.
        held: objects that must live as long as the function.
    """

    def __init__(
        self,
        stand_ins: Mapping[int, NDArray[Any]],
        block: str,
        objects: Collection[int] = (),
        in_row: Mapping[int, NDArray[Any]] = MappingProxyType({}),
    ) -> None:
        """`stand_ins`, `objects`, `in_row`: see `compile_calls`; `block`: the name of the block that begins here."""
        self._names = 0
        self._variables = {address_of(array): f"ptr %at{word}" for word, array in {**stand_ins, **in_row}.items()}
        self._replaced = [(address_of(array), array.nbytes) for array in (*stand_ins.values(), *in_row.values())]
        self._scratch = np.zeros(RESULT_WORDS, np.int64)
        self.held: list[Any] = [*stand_ins.values(), *in_row.values(), self._scratch]
        self.lines: list[str] = []
        for word in stand_ins:
            place = self.name("place")
            self.lines.append(f"{place} = {word_place(word)}")
            if word in objects:
                found, place = place, self.name("place")
                array = self.name("array")
                self.lines.append(f"{array} = load ptr, ptr {found}")
                self.lines.append(f"{place} = getelementptr i8, ptr {array}, i64 {DATA_OFFSET_BYTES}")
            self.lines.append(f"%at{word} = load ptr, ptr {place}")
        self.lines += [f"%at{word} = {word_place(word)}" for word in in_row]
        self._failures: list[str] = []
        self.block, self._turn = block, ""

    def failed(self) -> list[str]:
        """Returns the block in which the function ends if a kernel has failed."""
        if not self._failures:
            return []
        return ["failed:", f"%code = phi i32 {', '.join(self._failures)}", "ret i32 %code"]

    def name(self, what: str) -> str:
        """Returns the name of a new value or block."""
        self._names += 1
        return f"%{what}{self._names}_"

    def add(self, call: Call) -> None:
        if isinstance(call, NativeProduct):
            self._add_product(call)
        elif isinstance(call, NativeCheck):
            self._add_check(call)
        elif isinstance(call, NativeLoop):
            self._add_loop(call)
        else:
            self._add_kernel(call)

    def _add_kernel(self, call: NativeCall) -> None:
        compiled = _overload(call)
        result = self._scratch if call.result is None else call.result
        self.held += [call.arguments, result, compiled.library]
        error = self._scratch[RESULT_WORDS - 1 :]
        words = [self._result(result), self._pointer(error)]
        for argument in call.arguments:
            words += self._words(argument)
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        status, good = self.name("status"), self.name("good")
        self.lines += [f"{status} = call i32 {_function(words, address)}", f"{good} = icmp eq i32 {status}, 0"]
        self._go_on_if(good, status)

    def _add_check(self, call: NativeCheck) -> None:
        place, value, good = self.name("place"), self.name("value"), self.name("good")
        self.lines += [
            f"{place} = {word_place(call.word.number)}",
            f"{value} = load i64, ptr {place}",
            f"{good} = icmp sge i64 {value}, 0",
        ]
        self._go_on_if(good, str(REFUSED))

    def _go_on_if(self, good: str, status: str) -> None:
        self._failures.append(f"[{status}, %{self.block}]")
        self.block = self.name("next")[1:]
        self.lines += [f"br i1 {good}, label %{self.block}, label %failed", f"{self.block}:"]

    def _add_loop(self, call: NativeLoop) -> None:
        before, begun, self._turn = self.block, self.name("loop")[1:], self.name("turn")
        self.lines += [f"br label %{begun}", f"{begun}:"]
        place, self.block, turn = len(self.lines), begun, self._turn
        for part in call.calls:
            if isinstance(part, NativeProduct) and _count(part) not in (0, call.turns):
                raise TypeError(f"loop: expected stacks of {call.turns} matrices; found {_count(part)}")
            self.add(part)
        self.lines.insert(place, f"{turn} = phi i64 [0, %{before}], [{turn}next, %{self.block}]")
        more, self._turn = self.name("more"), ""
        self.block = self.name("after")[1:]
        self.lines += [
            f"{turn}next = add i64 {turn}, 1",
            f"{more} = icmp slt i64 {turn}next, {call.turns}",
            f"br i1 {more}, label %{begun}, label %{self.block}",
            f"{self.block}:",
        ]

    def _add_product(self, call: NativeProduct) -> None:
        found, count = blas(), _count(call)
        assert found is not None
        if count and not self._turn:
            if call.out.ndim == 2:
                raise TypeError(f"product: expected a stack for the results of {count} matrices; found one matrix")
            self._add_loop(NativeLoop(count, [call]))
            return
        name, arguments = routine(*map(first_of, call))
        self.held.append(call)
        steps = {address_of(array): array.strides[0] for array in call if array.ndim > 2}
        words = [self._blas_word(argument, found.bits, steps) for argument in arguments]
        called = _function(words, found.addresses[name])
        if name == "dot":
            value, place = self.name("dot"), self._blas_word(call.out, found.bits, steps)
            self.lines += [f"{value} = call float {called}", f"store float {value}, {place}"]
        else:
            self.lines.append(f"call void {called}")

    def _blas_word(self, argument: Argument, bits: int, steps: Mapping[int, int]) -> str:
        """Returns an argument; an array with a step lies that many bytes further in each turn of the loop."""
        if isinstance(argument, float):
            return f"float {_hexadecimal(argument)}"
        if isinstance(argument, int):
            return f"i{bits if isinstance(argument, Size) else 32} {argument:d}"
        step = steps.get(address_of(argument), 0)
        if not step:
            return self._pointer(argument)
        offset, place = self.name("offset"), self.name("place")
        self.lines += [
            f"{offset} = mul i64 {self._turn}, {step}",
            f"{place} = getelementptr i8, {self._pointer(argument)}, i64 {offset}",
        ]
        return f"ptr {place}"

    def _words(self, argument: Any) -> list[str]:
        if isinstance(argument, Word):
            place, value = self.name("place"), self.name("value")
            self.lines += [f"{place} = {word_place(argument.number)}", f"{value} = load float, ptr {place}"]
            return [f"float {value}"]
        if isinstance(argument, Turn):
            return [f"i64 {self._turn}"]
        if isinstance(argument, float):
            return [f"double {_hexadecimal(argument)}"]
        if isinstance(argument, np.float32):
            return [f"float {_hexadecimal(float(argument))}"]
        if not isinstance(argument, np.ndarray):
            return [f"i64 {int(argument)}"]
        size = [f"i64 {argument.size}", f"i64 {argument.itemsize}"]
        extents = [f"i64 {extent}" for extent in (*argument.shape, *argument.strides)]
        return ["ptr null", "ptr null", *size, self._pointer(argument), *extents]

    def _result(self, result: Result) -> str:
        if not isinstance(result, Word):
            return self._pointer(result)
        place = self.name("place")
        self.lines.append(f"{place} = {word_place(result.number)}")
        return f"ptr {place}"

    def _pointer(self, array: NDArray[Any]) -> str:
        address = address_of(array)
        if any(begin < address < begin + size_bytes for begin, size_bytes in self._replaced):
            raise TypeError(
                "expected an array whole, or a view from its first element on; found a view of "
                f"{list(array.shape)} that begins later in an array whose place is another in each step"
            )
        return self._variables.get(address, f"ptr inttoptr (i64 {address} to ptr)")


def word_place(word: int) -> str:
    """Returns the instruction that gives the address of a word of the row."""
    return f"getelementptr i64, ptr %words, i64 {word}"


def _overload(call: NativeCall) -> Any:
    """Returns a kernel's compiled code for these arguments."""
    call.kernel.load()
    for types, compiled in call.kernel.overloads.items():
        if len(types) == len(call.arguments) and all(map(_fits, types, call.arguments)):
            return compiled
    found = [f"{one.dtype} {list(one.shape)}" if isinstance(one, np.ndarray) else repr(one) for one in call.arguments]
    raise TypeError(f"{call.kernel.__name__}: expected {list(call.kernel.overloads)}; found {', '.join(found)}")


def _fits(kind: Any, argument: Any) -> bool:
    if isinstance(argument, np.ndarray):
        alike = getattr(kind, "ndim", -1) == argument.ndim and str(kind.dtype) == str(argument.dtype)
        return alike and bool(argument.flags.c_contiguous)
    if isinstance(argument, Word):
        return str(kind) == "float32"
    return str(kind) == {bool: "bool", int: "int64", Turn: "int64", float: "float64", np.float32: "float32"}.get(
        type(argument)
    )


def _function(words: Sequence[str], address: int) -> str:
    return f"inttoptr (i64 {address} to ptr)({', '.join(words)})"


def _hexadecimal(value: float) -> str:
    """Returns a constant as LLVM reads it; those of float32, too, are written as float64."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _count(call: NativeProduct) -> int:
    """Returns the matrices of a product's stacks, 0 if it has none.

    Raises:
        TypeError: stacks are not of one length.
    """
    counts = {len(array) for array in call if array.ndim > 2}
    if len(counts) > 1:
        raise TypeError(f"product: expected stacks of one length; found {[list(array.shape) for array in call]}")
    return max(counts, default=0)

"""float32 to and from bfloat16 and float16, in one pass each; 16-bit numbers are seen as their bits (uint16).

float16 uses the processor's own instructions; if it has none, HALF is False, and numpy converts.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped, unused-ignore]
import numba.core.cgutils
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import IN1, OUT1, kernel, readable, writable
from adamctl.kernels.compiled.vectors import intrinsic

cgutils: Any = numba.core.cgutils

LANES = 16
BLOCK = 2048  # elements: a block stays in the first-level cache
HALF = bool(llvmlite.binding.get_host_cpu_features().get("f16c")) or platform.machine() in ("aarch64", "arm64")
BITS16_IN, BITS16_OUT = readable(types.uint16, 1), writable(types.uint16, 1)
BITS32_IN, BITS32_OUT = readable(types.uint32, 1), writable(types.uint32, 1)

INFINITY = np.uint32(0x7F800000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
HALF_LESS_ONE = np.uint32(0x7FFF)
QUIET = np.uint32(0x40)
ONE, SIXTEEN = np.uint32(1), np.uint32(16)
LARGEST = np.finfo(np.float32).max
RANGE = {"bfloat16": float.fromhex("0x1.fep127"), "float16": 65504.0}


@kernel((BITS32_IN, BITS16_OUT))
def to_bfloat16(values: Any, out: Any) -> None:
    """The upper half of each number, rounded to nearest, ties to even; NaN becomes a quiet NaN of the same sign."""
    for i in range(len(values)):
        bits = values[i]
        upper = bits >> SIXTEEN
        rounded = (bits + HALF_LESS_ONE + (upper & ONE)) >> SIXTEEN
        out[i] = np.uint16(upper | QUIET if bits & MAGNITUDE > INFINITY else rounded)


@kernel((BITS16_IN, BITS32_OUT))
def from_bfloat16(values: Any, out: Any) -> None:
    """Exact: 16 zero bits are appended."""
    for i in range(len(values)):
        out[i] = np.uint32(values[i]) << SIXTEEN


@kernel((BITS16_IN, types.uint16))
def all_below(values: Any, exponent: Any) -> bool:
    """Whether no number has all of these bits; stops after the first bad block."""
    for start in range(0, len(values), BLOCK):
        part = values[start : min(start + BLOCK, len(values))]
        bad = np.uint16(0)
        for i in range(len(part)):
            bad |= np.uint16(1) if part[i] & exponent == exponent else np.uint16(0)
        if bad:
            return False
    return True


@intrinsic
def _convert(typing: Any, values: Any, out: Any) -> Any:
    """float32 to float16 or back, whichever way the arrays' types say, by the processor's conversions."""
    signature = types.void(values, out)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            cgutils.create_struct_proxy(kind)(context, builder, array)
            for kind, array in zip(signature.args, arguments, strict=True)
        )
        narrow = signature.args[0].dtype == types.float32
        size = source.nitems

        def sweep(lanes: int, start: Any, steps: Any) -> None:
            wide, half = ir.VectorType(ir.FloatType(), lanes), ir.VectorType(ir.HalfType(), lanes)
            before, after = (wide, half) if narrow else (half, wide)
            with cgutils.for_range(builder, steps, intp=size.type) as loop:
                at = builder.add(start, builder.mul(loop.index, ir.Constant(size.type, lanes)))
                pointer = builder.bitcast(builder.gep(source.data, [at]), before.as_pointer())
                number = builder.load(pointer, align=2)
                number = builder.fptrunc(number, half) if narrow else builder.fpext(number, wide)
                pointer = builder.bitcast(builder.gep(target.data, [at]), after.as_pointer())
                builder.store(number, pointer, align=2)

        whole = builder.udiv(size, ir.Constant(size.type, LANES))
        covered = builder.mul(whole, ir.Constant(size.type, LANES))
        sweep(LANES, ir.Constant(size.type, 0), whole)
        sweep(1, covered, builder.sub(size, covered))
        return context.get_dummy_value()

    return signature, expand


if HALF:

    @kernel((IN1, BITS16_OUT))
    def to_float16(values: Any, out: Any) -> None:
        """Rounded to nearest, ties to even; beyond 65504 infinity; NaN stays NaN."""
        _convert(values, out)

    @kernel((BITS16_IN, OUT1))
    def from_float16(values: Any, out: Any) -> None:
        """Exact."""
        _convert(values, out)


class _Narrower:
    """Rounds `lanes` numbers at a time with feedback (`kernels/numeric/feedback.py`)."""

    def __init__(self, builder: Any, lanes: int, name: str) -> None:
        self.builder, self.name = builder, name
        self.wide, self.bits = ir.VectorType(ir.FloatType(), lanes), ir.VectorType(ir.IntType(32), lanes)
        self.narrow = ir.VectorType(ir.IntType(16), lanes)
        self.half = ir.VectorType(ir.HalfType(), lanes)

    def all(self, kind: Any, value: float) -> Any:
        return ir.Constant(kind, [value] * kind.count)

    def within(self, number: Any, limit: float) -> Any:
        """The number, or +-limit if it is beyond; NaN stays."""
        for sign, beyond in ((1, ">"), (-1, "<")):
            bound = self.all(self.wide, sign * limit)
            number = self.builder.select(self.builder.fcmp_ordered(beyond, number, bound), bound, number)
        return number

    def is_number(self, value: Any) -> Any:
        """Whether some bit of the exponent is clear: neither NaN nor infinite."""
        infinity = self.all(self.bits, int(INFINITY))
        return self.builder.icmp_unsigned(
            "!=", self.builder.and_(self.builder.bitcast(value, self.bits), infinity), infinity
        )

    def rounded(self, number: Any) -> tuple[Any, Any]:
        """Returns the bits to send, and the number that they are."""
        build = self.builder
        if self.name == "float16":
            half = build.fptrunc(number, self.half)
            return build.bitcast(half, self.narrow), build.fpext(half, self.wide)
        bits = build.bitcast(number, self.bits)
        upper = build.lshr(bits, self.all(self.bits, 16))
        odd = build.and_(upper, self.all(self.bits, 1))
        nearest = build.add(build.add(bits, self.all(self.bits, int(HALF_LESS_ONE))), odd)
        nearest = build.lshr(nearest, self.all(self.bits, 16))
        quiet = build.or_(upper, self.all(self.bits, int(QUIET)))
        sent = build.select(build.fcmp_unordered("uno", number, number), quiet, nearest)
        again = build.bitcast(build.shl(sent, self.all(self.bits, 16)), self.wide)
        return build.trunc(sent, self.narrow), again

    def step(self, value: Any, residual: Any) -> tuple[Any, Any]:
        """Returns the bits to send and the new residual."""
        build = self.builder
        is_number = self.is_number(value)
        total = self.within(build.fadd(value, residual), float(LARGEST))
        sent, again = self.rounded(build.select(is_number, self.within(total, RANGE[self.name]), value))
        return sent, build.select(is_number, build.fsub(total, again), residual)


@intrinsic
def _feedback(typing: Any, name: Any, values: Any, residual: Any, out: Any) -> Any:
    """The loop around `_Narrower.step`, LANES numbers at a time and the rest one by one."""
    if not isinstance(name, types.StringLiteral):
        return None
    signature = types.void(name, values, residual, out)
    wanted = name.literal_value

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, kept, target = (
            cgutils.create_struct_proxy(kind)(context, builder, array)
            for kind, array in zip(signature.args[1:], arguments[1:], strict=True)
        )
        size = source.nitems

        def sweep(lanes: int, start: Any, steps: Any) -> None:
            work = _Narrower(builder, lanes, wanted)
            with cgutils.for_range(builder, steps, intp=size.type) as loop:
                at = builder.add(start, builder.mul(loop.index, ir.Constant(size.type, lanes)))

                def place(array: Any, kind: Any) -> Any:
                    return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())

                value = builder.load(place(source, work.wide), align=4)
                residual = builder.load(place(kept, work.wide), align=4)
                sent, residual = work.step(value, residual)
                builder.store(sent, place(target, work.narrow), align=2)
                builder.store(residual, place(kept, work.wide), align=4)

        whole = builder.udiv(size, ir.Constant(size.type, LANES))
        covered = builder.mul(whole, ir.Constant(size.type, LANES))
        sweep(LANES, ir.Constant(size.type, 0), whole)
        sweep(1, covered, builder.sub(size, covered))
        return context.get_dummy_value()

    return signature, expand


@kernel((IN1, OUT1, BITS16_OUT), relaxed=False)
def feedback_bfloat16(values: Any, residual: Any, out: Any) -> None:
    """See `adamctl.kernels.numeric.feedback`."""
    _feedback("bfloat16", values, residual, out)


if HALF:

    @kernel((IN1, OUT1, BITS16_OUT), relaxed=False)
    def feedback_float16(values: Any, residual: Any, out: Any) -> None:
        """See `adamctl.kernels.numeric.feedback`."""
        _feedback("float16", values, residual, out)

"""float32 to and from bfloat16 and float16, in one pass each; 16-bit numbers are seen as their bits (uint16).

float16 takes the processor's own instructions; where it has none, HALF is False, and numpy converts.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped, unused-ignore]
import numba.core.cgutils
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import IN1, OUT1, f32, inline, kernel, readable, writable
from adamctl.kernels.compiled.vectors import intrinsic

cgutils: Any = numba.core.cgutils

LANES = 16
BLOCK = 2048  # elements: what is worked on stays in the first-level cache
HALF = bool(llvmlite.binding.get_host_cpu_features().get("f16c")) or platform.machine() in ("aarch64", "arm64")
BITS16_IN, BITS16_OUT = readable(types.uint16, 1), writable(types.uint16, 1)
BITS32_IN, BITS32_OUT = readable(types.uint32, 1), writable(types.uint32, 1)

INFINITY = np.uint32(0x7F800000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
HALF_LESS_ONE = np.uint32(0x7FFF)
QUIET = np.uint32(0x40)
ONE, SIXTEEN = np.uint32(1), np.uint32(16)
LARGEST = np.finfo(np.float32).max


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


@inline
def _add_residual(values: Any, residual: Any, total: Any, limited: Any, limit: Any) -> None:
    """total = values + residual; `limited` is that within the format's range, or what is not finite as it is."""
    for i in range(len(values)):
        value = values[i]
        added = value + residual[i]
        added = -LARGEST if added < -LARGEST else LARGEST if added > LARGEST else added
        total[i] = added
        inside = -limit if added < -limit else limit if added > limit else added
        limited[i] = inside if abs(value) <= LARGEST else value


@inline
def _keep_residual(values: Any, residual: Any, total: Any, sent: Any) -> None:
    """residual = total - sent, where there was a number to send."""
    for i in range(len(values)):
        residual[i] = total[i] - sent[i] if abs(values[i]) <= LARGEST else residual[i]


@kernel((IN1, OUT1, BITS16_OUT, f32), relaxed=False)
def feedback_bfloat16(values: Any, residual: Any, out: Any, limit: Any) -> None:
    """See `adamctl.kernels.feedback`."""
    total, sent = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    bits = sent.view(np.uint32)
    for start in range(0, len(values), BLOCK):
        stop = min(start + BLOCK, len(values))
        part, kept = values[start:stop], residual[start:stop]
        _add_residual(part, kept, total, sent, limit)
        for i in range(stop - start):
            number = bits[i]
            upper = number >> SIXTEEN
            rounded = (number + HALF_LESS_ONE + (upper & ONE)) >> SIXTEEN
            rounded = upper | QUIET if number & MAGNITUDE > INFINITY else rounded
            out[start + i] = np.uint16(rounded)
            bits[i] = rounded << SIXTEEN
        _keep_residual(part, kept, total, sent)


if HALF:

    @kernel((IN1, OUT1, BITS16_OUT, f32), relaxed=False)
    def feedback_float16(values: Any, residual: Any, out: Any, limit: Any) -> None:
        """See `adamctl.kernels.feedback`."""
        total, sent = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
        for start in range(0, len(values), BLOCK):
            stop = min(start + BLOCK, len(values))
            part, kept, narrow = values[start:stop], residual[start:stop], out[start:stop]
            _add_residual(part, kept, total, sent, limit)
            _convert(sent[: stop - start], narrow)
            _convert(narrow, sent[: stop - start])
            _keep_residual(part, kept, total, sent)

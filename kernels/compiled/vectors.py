"""LLVM instructions on vectors of float32, from which kernels are made that a compiler does not make of loops.

For loops over Python arrays, the compiler does not keep a block of sums in registers, and it calls a library for each
single exponential. What is made of these instructions is expanded in place where a compiled kernel calls it. Arrays are
1-D float32, offsets and steps are counted in elements, and nothing is checked. Eight lanes fill an AVX register; wider
or narrower machines split or join them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.core.cgutils
import numba.extending
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

cgutils: Any = numba.core.cgutils

LANES = 8
_UNALIGNED = 4


def float_vector(lanes: int) -> Any:
    """The type of a vector of float32."""
    return ir.VectorType(ir.FloatType(), lanes)


_FLOATS = float_vector(LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)


def intrinsic(function: Callable[..., Any]) -> Any:
    """As numba's intrinsic; it is called without its first parameter, which a type checker cannot follow."""
    return numba.extending.intrinsic(function)


def address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Returns the address of an array's element."""
    data = cgutils.create_struct_proxy(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def load_vector(builder: Any, at: Any, vector: Any = _FLOATS) -> Any:
    """Returns the vector at an address that need not be a multiple of its size."""
    return builder.load(builder.bitcast(at, vector.as_pointer()), align=_UNALIGNED)


def store_vector(builder: Any, value: Any, at: Any) -> None:
    """Writes a vector to an address that need not be a multiple of its size."""
    builder.store(value, builder.bitcast(at, value.type.as_pointer()), align=_UNALIGNED)


def spread(builder: Any, scalar: Any, vector: Any = _FLOATS) -> Any:
    """Returns a vector with the scalar in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, undefined, lanes)


def multiply_add(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """Returns left * right + total, rounded once where the machine can."""
    product = builder.fmul(left, right, flags=("contract",))
    return builder.fadd(product, total, flags=("contract",))


def plus(builder: Any, start: Any, number: Any, step: Any) -> Any:
    """Returns start + number * step."""
    return builder.add(start, builder.mul(number, step))


def store_some(builder: Any, value: Any, at: Any, count: Any) -> None:
    """Writes the first `count` lanes, one by one unless it is all of them."""
    whole = builder.icmp_signed("==", count, ir.Constant(count.type, value.type.count))
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            store_vector(builder, value, at)
        with otherwise:
            copy = cgutils.alloca_once_value(builder, value)
            lanes = builder.bitcast(copy, value.type.element.as_pointer())
            with cgutils.for_range(builder, count, intp=count.type) as lane:
                builder.store(builder.load(builder.gep(lanes, [lane.index])), builder.gep(at, [lane.index]))


def load_some(builder: Any, at: Any, count: Any, vector: Any = _FLOATS) -> Any:
    """Returns the first `count` numbers at an address, one by one, and zeros in the other lanes."""
    copy = cgutils.alloca_once_value(builder, ir.Constant(vector, None))
    lanes = builder.bitcast(copy, vector.element.as_pointer())
    with cgutils.for_range(builder, count, intp=count.type) as lane:
        builder.store(builder.load(builder.gep(at, [lane.index])), builder.gep(lanes, [lane.index]))
    return builder.load(copy)


def _finish(builder: Any, value: Any, bias: Any, relu: Any) -> Any:
    """Returns value + bias, at least zero if relu is set; NaN stays."""
    value = builder.fadd(value, bias)
    zero = ir.Constant(_FLOATS, None)
    below = builder.fcmp_ordered("<", value, zero)
    cut = spread(builder, relu, ir.VectorType(ir.IntType(1), LANES))
    return builder.select(builder.and_(below, cut), zero, value)


@intrinsic
def finish_sums(
    typing: Any, sums: Any, at: Any, bias: Any, bias_at: Any, out: Any, out_at: Any, count: Any, relu: Any
) -> Any:
    """out[out_at + i] = f(sums[at + i] + bias[bias_at + i]) for i < count <= 8; f is relu or nothing."""
    size = types.intp
    signature = types.void(sums, size, bias, size, out, size, size, types.boolean)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums_, at_, bias_, bias_at_, out_, out_at_, count_, relu_ = arguments
        value = load_vector(builder, address(context, builder, signature.args[0], sums_, at_))
        bias_vector = load_vector(builder, address(context, builder, signature.args[2], bias_, bias_at_))
        value = _finish(builder, value, bias_vector, builder.trunc(relu_, ir.IntType(1)))
        store_some(builder, value, address(context, builder, signature.args[4], out_, out_at_), count_)
        return context.get_dummy_value()

    return signature, expand


@intrinsic
def pool_window(
    typing: Any, x: Any, x_at: Any, x_row: Any, x_step: Any, rows: Any, columns: Any, place: Any, place_row: Any,
    bias: Any, bias_at: Any, relu: Any, out: Any, winner: Any, out_at: Any, count: Any,
) -> Any:  # fmt: skip
    """The largest of a window for `count` <= 8 maps, and its place; NaN is largest, of equals the first in row order.

    out[out_at + i] = f(bias[bias_at + i] + max over dy < rows, dx < columns of x[x_at + dy*x_row + dx*x_step + i]), f
    being relu or nothing; winner[out_at + i] = place + dy*place_row + dx of that maximum (int32).
    """
    size = types.intp
    signature = types.void(
        x, size, size, size, size, size, size, size, bias, size, types.boolean, out, winner, size, size
    )  # fmt: skip

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_, x_at_, x_row_, x_step_, rows_, columns_, place_, place_row_, *rest = arguments
        bias_, bias_at_, relu_, out_, winner_, out_at_, count_ = rest

        def numbers(value: Any) -> Any:
            return spread(builder, builder.trunc(value, ir.IntType(32)), _INTEGERS)

        first = load_vector(builder, address(context, builder, signature.args[0], x_, x_at_))
        held, held_place = cgutils.alloca_once(builder, _FLOATS), cgutils.alloca_once(builder, _INTEGERS)
        builder.store(first, held)
        builder.store(numbers(place_), held_place)
        with (
            cgutils.for_range(builder, rows_, intp=place_.type) as dy,
            cgutils.for_range(builder, columns_, intp=place_.type) as dx,
        ):
            at = plus(builder, plus(builder, x_at_, dy.index, x_row_), dx.index, x_step_)
            value = load_vector(builder, address(context, builder, signature.args[0], x_, at))
            number = builder.add(plus(builder, place_, dy.index, place_row_), dx.index)
            old = builder.load(held)
            larger = builder.fcmp_unordered(">", value, old)
            better = builder.and_(larger, builder.fcmp_ordered("ord", old, old))
            builder.store(builder.select(better, value, old), held)
            builder.store(builder.select(better, numbers(number), builder.load(held_place)), held_place)
        bias_vector = load_vector(builder, address(context, builder, signature.args[8], bias_, bias_at_))
        value = _finish(builder, builder.load(held), bias_vector, builder.trunc(relu_, ir.IntType(1)))
        store_some(builder, value, address(context, builder, signature.args[11], out_, out_at_), count_)
        places = builder.load(held_place)
        store_some(builder, places, address(context, builder, signature.args[12], winner_, out_at_), count_)
        return context.get_dummy_value()

    return signature, expand

"""Pieces of a convolution written for vector registers, as LLVM instructions on vectors of eight float32.

Loops over Python arrays leave it to the compiler to find the registers, and it does not keep a block of
sums in them. These pieces say so: each is expanded in place where a compiled kernel calls it. Arrays are
1-D float32, offsets and steps are counted in elements, and nothing is checked. Eight lanes fill an AVX
register; wider or narrower machines split or join them.
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
    """As numba's; it is called without its first parameter, which a type checker cannot follow."""
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


@intrinsic
def window_largest(
    typing: Any, x: Any, x_at: Any, x_row: Any, x_step: Any, rows: Any, columns: Any,
    place: Any, place_row: Any, place_step: Any, best: Any, where: Any, out_at: Any,
) -> Any:  # fmt: skip
    """The largest of a window for eight maps, and its place; NaN is largest, of equals the first one in row order.

    best[out_at + i] = max over dy < rows, dx < columns of x[x_at + dy*x_row + dx*x_step + i];
    where[out_at + i] = place + dy*place_row + dx*place_step of that maximum (int32).
    """
    size = types.intp
    signature = types.void(x, size, size, size, size, size, size, size, size, best, where, size)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_, x_at_, x_row_, x_step_, rows_, columns_, place_, place_row_, place_step_, best_, where_, at_ = arguments
        first = load_vector(builder, address(context, builder, signature.args[0], x_, x_at_))
        held = cgutils.alloca_once_value(builder, first)
        held_place = cgutils.alloca_once_value(
            builder, spread(builder, builder.trunc(place_, ir.IntType(32)), _INTEGERS)
        )
        builder.store(first, held)
        builder.store(spread(builder, builder.trunc(place_, ir.IntType(32)), _INTEGERS), held_place)
        with (
            cgutils.for_range(builder, rows_, intp=at_.type) as dy,
            cgutils.for_range(builder, columns_, intp=at_.type) as dx,
        ):
            at = plus(builder, plus(builder, x_at_, dy.index, x_row_), dx.index, x_step_)
            value = load_vector(builder, address(context, builder, signature.args[0], x_, at))
            number = plus(builder, plus(builder, place_, dy.index, place_row_), dx.index, place_step_)
            old = builder.load(held)
            larger = builder.fcmp_unordered(">", value, old)
            better = builder.and_(larger, builder.fcmp_ordered("ord", old, old))
            builder.store(builder.select(better, value, old), held)
            places = spread(builder, builder.trunc(number, ir.IntType(32)), _INTEGERS)
            builder.store(builder.select(better, places, builder.load(held_place)), held_place)
        store_vector(builder, builder.load(held), address(context, builder, signature.args[9], best_, at_))
        store_vector(builder, builder.load(held_place), address(context, builder, signature.args[10], where_, at_))
        return context.get_dummy_value()

    return signature, expand

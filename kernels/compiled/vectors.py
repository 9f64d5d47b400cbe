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

cgutils: Any = numba.core.cgutils

LANES = 8
_UNALIGNED = 4


def float_vector(lanes: int) -> Any:
    """The type of a vector of float32."""
    return ir.VectorType(ir.FloatType(), lanes)


FLOATS = float_vector(LANES)
INTEGERS = ir.VectorType(ir.IntType(32), LANES)


def intrinsic(function: Callable[..., Any]) -> Any:
    """As numba's intrinsic; it is called without its first parameter, which a type checker cannot follow."""
    return numba.extending.intrinsic(function)


def address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Returns the address of an array's element."""
    data = cgutils.create_struct_proxy(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def load_vector(builder: Any, at: Any, vector: Any = FLOATS) -> Any:
    """Returns the vector at an address that need not be a multiple of its size."""
    return builder.load(builder.bitcast(at, vector.as_pointer()), align=_UNALIGNED)


def store_vector(builder: Any, value: Any, at: Any) -> None:
    """Writes a vector to an address that need not be a multiple of its size."""
    builder.store(value, builder.bitcast(at, value.type.as_pointer()), align=_UNALIGNED)


def spread(builder: Any, scalar: Any, vector: Any = FLOATS) -> Any:
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


def load_some(builder: Any, at: Any, count: Any, vector: Any = FLOATS) -> Any:
    """Returns the first `count` numbers at an address, one by one, and zeros in the other lanes."""
    copy = cgutils.alloca_once_value(builder, ir.Constant(vector, None))
    lanes = builder.bitcast(copy, vector.element.as_pointer())
    with cgutils.for_range(builder, count, intp=count.type) as lane:
        builder.store(builder.load(builder.gep(at, [lane.index])), builder.gep(lanes, [lane.index]))
    return builder.load(copy)

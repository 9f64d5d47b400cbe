"""The ends of a convolution's inner loops: bias, activation and max-pooling of sums that lie in vector registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.curves import FUNCTIONS
from adamctl.kernels.compiled.vectors import (
    FLOATS,
    INTEGERS,
    address,
    cgutils,
    intrinsic,
    load_vector,
    plus,
    spread,
    store_some,
)


def _finish(builder: Any, value: Any, bias: Any, code: Any) -> Any:
    """Returns f(value + bias), f being the activation with that code."""
    value = builder.fadd(value, bias)
    held = cgutils.alloca_once_value(builder, value)
    after = builder.append_basic_block("activated")
    switch = builder.switch(code, after)
    for known, function in FUNCTIONS.items():
        block = builder.append_basic_block("activation")
        switch.add_case(ir.Constant(code.type, known), block)
        with builder.goto_block(block):
            builder.store(function(builder, value), held)
            builder.branch(after)
    builder.position_at_end(after)
    return builder.load(held)


@intrinsic
def finish_sums(
    typing: Any, sums: Any, at: Any, bias: Any, bias_at: Any, out: Any, out_at: Any, count: Any, code: Any
) -> Any:
    """out[out_at + i] = f(sums[at + i] + bias[bias_at + i]) for i < count <= 8; f is the activation."""
    size = types.intp
    signature = types.void(sums, size, bias, size, out, size, size, size)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums_, at_, bias_, bias_at_, out_, out_at_, count_, code_ = arguments
        value = load_vector(builder, address(context, builder, signature.args[0], sums_, at_))
        bias_vector = load_vector(builder, address(context, builder, signature.args[2], bias_, bias_at_))
        value = _finish(builder, value, bias_vector, code_)
        store_some(builder, value, address(context, builder, signature.args[4], out_, out_at_), count_)
        return context.get_dummy_value()

    return signature, expand


@intrinsic
def pool_window(
    typing: Any, x: Any, x_at: Any, x_row: Any, x_step: Any, rows: Any, columns: Any, place: Any, place_row: Any,
    bias: Any, bias_at: Any, code: Any, out: Any, winner: Any, out_at: Any, count: Any,
) -> Any:  # fmt: skip
    """The largest of a window for `count` <= 8 maps, and its place; NaN is largest, of equals the first in row order.

    out[out_at + i] = f(bias[bias_at + i] + max over dy < rows, dx < columns of x[x_at + dy*x_row + dx*x_step + i]), f
    being relu or nothing; winner[out_at + i] = place + dy*place_row + dx of that maximum (int32).
    """
    size = types.intp
    signature = types.void(
        x, size, size, size, size, size, size, size, bias, size, size, out, winner, size, size
    )  # fmt: skip

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_, x_at_, x_row_, x_step_, rows_, columns_, place_, place_row_, *rest = arguments
        bias_, bias_at_, code_, out_, winner_, out_at_, count_ = rest

        def numbers(value: Any) -> Any:
            return spread(builder, builder.trunc(value, ir.IntType(32)), INTEGERS)

        first = load_vector(builder, address(context, builder, signature.args[0], x_, x_at_))
        held, held_place = cgutils.alloca_once(builder, FLOATS), cgutils.alloca_once(builder, INTEGERS)
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
        value = _finish(builder, builder.load(held), bias_vector, code_)
        store_some(builder, value, address(context, builder, signature.args[11], out_, out_at_), count_)
        places = builder.load(held_place)
        store_some(builder, places, address(context, builder, signature.args[12], winner_, out_at_), count_)
        return context.get_dummy_value()

    return signature, expand

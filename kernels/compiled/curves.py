"""Activations on vectors of float32: relu, tanh and sigmoid, without a call for each number.

tanh and sigmoid come from one exponential of a number at or below zero: exp(-d) = s (1 + p), where s = 2^-k, k =
d / ln 2 rounded, and p = exp(r) - 1 of the rest r, |r| <= ln(2) / 2, by a polynomial. From m = exp(-2 |x|) - 1 =
s p + (s - 1), which is exact for small numbers, tanh |x| = -m / (m + 2). From e = exp(-|x|), sigmoid(x) = 1 / (1 + e),
or e / (1 + e) below zero. Both are within 3 units in the last place of the exact value, except that sigmoid stays at
1.6e-38 below -87. NaN stays NaN. Kernels that use them are not `relaxed`: reordered, sums here lose their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.vectors import (
    address,
    cgutils,
    float_vector,
    intrinsic,
    load_some,
    load_vector,
    multiply_add,
    store_some,
    store_vector,
)

RELU, TANH, SIGMOID = 1, 2, 3
WIDTH = 16
"""Lanes of a vector in element-wise kernels: the widest registers' float32."""

DISTANCE_MAX = 87.0  # exp(-87) is near the smallest normal float32
ROUND = 1.5 * 2**23  # added and subtracted, it rounds to a whole number, which then lies in the lowest bits
LN_2_HIGH = 0.693359375  # of few bits, so that its product with a small whole number is exact
LN_2_LOW = math.log(2) - LN_2_HIGH
MANTISSA_BITS, ONE_BITS, SIGN_BIT = 23, 127 << 23, -(2**31)
SERIES = (0.4999999814090912, 0.16666543054881605, 0.041667202495636976, 0.008366596554082128, 0.001388249170634542)
"""(exp(r) - 1 - r) / r^2 for |r| <= 0.347, lowest power first: least largest error of exp(r) - 1, 1.3e-8 of it."""


def relu(builder: Any, value: Any) -> Any:
    """max(value, 0); NaN stays."""
    zero = ir.Constant(value.type, None)
    return builder.select(builder.fcmp_ordered("<", value, zero), zero, value)


def tanh(builder: Any, value: Any) -> Any:
    bits = builder.bitcast(value, _integers(value))
    sign, size = builder.and_(bits, _all(bits, SIGN_BIT)), _absolute(builder, value)
    scale, series = _exponential_of_minus(builder, builder.fadd(size, size))
    less = multiply_add(builder, scale, series, builder.fsub(scale, _all(value, 1.0)))
    result = _absolute(builder, builder.fdiv(less, builder.fadd(less, _all(value, 2.0))))
    signed = builder.bitcast(builder.or_(builder.bitcast(result, bits.type), sign), value.type)
    return builder.select(builder.fcmp_ordered("ord", value, value), signed, value)


def sigmoid(builder: Any, value: Any) -> Any:
    scale, series = _exponential_of_minus(builder, _absolute(builder, value))
    exponential, one = multiply_add(builder, scale, series, scale), _all(value, 1.0)
    above = builder.select(builder.fcmp_ordered("<", value, ir.Constant(value.type, None)), exponential, one)
    result = builder.fdiv(above, builder.fadd(exponential, one))
    return builder.select(builder.fcmp_ordered("ord", value, value), result, value)


FUNCTIONS: dict[int, Callable[[Any, Any], Any]] = {RELU: relu, TANH: tanh, SIGMOID: sigmoid}
"""An activation's code (`adamctl.kernels.layers.activations.CODES`) -> its instructions."""


def _integers(value: Any) -> Any:
    return ir.VectorType(ir.IntType(32), value.type.count)


def _all(like: Any, number: float) -> Any:
    """Returns a vector of the type of another, with the number in every lane."""
    kind = like.type
    return ir.Constant(kind, [ir.Constant(kind.element, number)] * kind.count)


def _absolute(builder: Any, value: Any) -> Any:
    bits = builder.bitcast(value, _integers(value))
    return builder.bitcast(builder.and_(bits, _all(bits, ~SIGN_BIT)), value.type)


def _exponential_of_minus(builder: Any, distance: Any) -> tuple[Any, Any]:
    """Returns s and p with exp(-distance) = s (1 + p), for distance >= 0; beyond 87, and for NaN, those of 87."""

    def number(value: float) -> Any:
        return _all(distance, float(np.float32(value)))

    near = builder.fcmp_ordered("<", distance, number(DISTANCE_MAX))
    distance = builder.select(near, distance, number(DISTANCE_MAX))
    shifted = multiply_add(builder, distance, number(-1 / math.log(2)), number(ROUND))
    halvings = builder.fsub(shifted, number(ROUND))  # at or below 0
    bits = builder.bitcast(shifted, _integers(distance))
    exponent = builder.shl(bits, _all(bits, MANTISSA_BITS))
    scale = builder.bitcast(builder.add(exponent, _all(bits, ONE_BITS)), distance.type)
    rest = multiply_add(builder, halvings, number(-LN_2_HIGH), builder.fneg(distance))
    rest = multiply_add(builder, halvings, number(-LN_2_LOW), rest)
    series = number(SERIES[-1])
    for factor in SERIES[-2::-1]:
        series = multiply_add(builder, series, rest, number(factor))
    return scale, multiply_add(builder, builder.fmul(rest, rest), series, rest)


def _add_and_apply(function: Callable[[Any, Any], Any]) -> Any:
    """Returns the intrinsic: values[at + i] = f(values[at + i] + bias[i]), i < count."""

    def run(typing: Any, values: Any, at: Any, bias: Any, count: Any) -> Any:
        def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values_, at_, bias_, count_ = arguments
            width, vector = ir.Constant(count_.type, WIDTH), float_vector(WIDTH)

            def places(index: Any) -> tuple[Any, Any]:
                place = address(context, builder, signature.args[0], values_, builder.add(at_, index))
                return place, address(context, builder, signature.args[2], bias_, index)

            with cgutils.for_range(builder, builder.sdiv(count_, width), intp=count_.type) as turn:
                place, of_bias = places(builder.mul(turn.index, width))
                total = builder.fadd(load_vector(builder, place, vector), load_vector(builder, of_bias, vector))
                store_vector(builder, function(builder, total), place)
            rest = builder.srem(count_, width)
            with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(rest.type, 0))):
                place, of_bias = places(builder.sub(count_, rest))
                total = builder.fadd(
                    load_some(builder, place, rest, vector), load_some(builder, of_bias, rest, vector)
                )  # fmt: skip
                store_some(builder, function(builder, total), place, rest)
            return context.get_dummy_value()

        return types.void(values, types.intp, bias, types.intp), expand

    return intrinsic(run)


add_and_tanh, add_and_sigmoid = _add_and_apply(tanh), _add_and_apply(sigmoid)

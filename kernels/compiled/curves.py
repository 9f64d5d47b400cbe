"""tanh and sigmoid on vectors of float32, without a call for each number.

tanh and sigmoid come from one exponential of a number at or below zero: exp(-d) = s (1 + p), where s = 2^-k, k =
d / ln 2 rounded, and p = exp(r) - 1 of the rest r, |r| <= ln(2) / 2, by a polynomial. From m = exp(-2 |x|) - 1 =
s p + (s - 1), which is exact for small numbers, tanh |x| = -m / (m + 2). From e = exp(-|x|), sigmoid(x) = 1 / (1 + e),
or e / (1 + e) below zero. Both are within 3 units in the last place of the exact value, except that sigmoid stays at
1.6e-38 below -87. NaN stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import inline
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


def _over_a_run(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Returns two intrinsics: values[at + i] = f(values[at + i]), and f(values[at + i] + bias[i]), i < count."""

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, at, count, *bias = arguments
        width, vector = ir.Constant(count.type, WIDTH), float_vector(WIDTH)
        types_, rest = signature.args, builder.srem(count, width)

        def places(index: Any) -> list[Any]:
            own = address(context, builder, types_[0], values, builder.add(at, index))
            return [own, *(address(context, builder, types_[3], other, index) for other in bias)]

        def applied(numbers: list[Any]) -> Any:
            return function(builder, numbers[0] if len(numbers) == 1 else builder.fadd(*numbers))

        with cgutils.for_range(builder, builder.sdiv(count, width), intp=count.type) as turn:
            found = places(builder.mul(turn.index, width))
            store_vector(builder, applied([load_vector(builder, place, vector) for place in found]), found[0])
        with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(rest.type, 0))):
            found = places(builder.sub(count, rest))
            store_some(builder, applied([load_some(builder, place, rest, vector) for place in found]), found[0], rest)
        return context.get_dummy_value()

    def alone(typing: Any, values: Any, at: Any, count: Any) -> Any:
        return types.void(values, types.intp, types.intp), expand

    def with_bias(typing: Any, values: Any, at: Any, count: Any, bias: Any) -> Any:
        return types.void(values, types.intp, types.intp, bias), expand

    return intrinsic(alone), intrinsic(with_bias)


_tanh, _tanh_with_bias = _over_a_run(tanh)
_sigmoid, _sigmoid_with_bias = _over_a_run(sigmoid)
exact = partial(inline, relaxed=False)
"""Reordered, the sums of an exponential lose their meaning."""


@exact
def apply_curve(values: Any, at: int, count: int, code: int) -> None:
    """values[at : at + count] = f(themselves) if the code is that of tanh or sigmoid."""
    if code == TANH:
        _tanh(values, at, count)
    elif code == SIGMOID:
        _sigmoid(values, at, count)


@exact
def add_and_apply_curve(values: Any, at: int, count: int, bias: Any, code: int) -> None:
    """values[at : at + count] = f(themselves + bias), f being tanh or sigmoid."""
    if code == TANH:
        _tanh_with_bias(values, at, count, bias)
    elif code == SIGMOID:
        _sigmoid_with_bias(values, at, count, bias)

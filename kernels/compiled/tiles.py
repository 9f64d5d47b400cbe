"""The inner loops of a convolution: register tiles of sums over taps, over pixels, and over listed errors.

As in `adamctl.kernels.compiled.vectors`, each is expanded in place; arrays are 1-D float32 and nothing is
checked. A tile is `count` x `vectors` vectors of `lanes` numbers; all of `SHAPES` are expanded, and a call's last three
numbers choose. Which are worth while: `adamctl.kernels.tiling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped, unused-ignore]
import numba.core.config
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.vectors import (
    address,
    cgutils,
    float_vector,
    intrinsic,
    load_vector,
    multiply_add,
    plus,
    spread,
    store_vector,
)

SIZE = types.intp
_INTEGER = ir.IntType(64)


def _shapes(counts: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    pieces = [(vectors, lanes) for lanes, most in ((8, 3), (16, 4)) for vectors in range(1, most + 1)]
    return tuple((count, vectors, lanes) for vectors, lanes in pieces for count in counts if count * vectors <= 24)


SHAPES = _shapes((1, 2, 4, 5, 6, 8))
LIST_SHAPES = _shapes((1, 2, 3, 5, 7))
"""Those of `list_tile`: kernels have 3, 5 or 7 rows."""


def _has_wide_vectors() -> bool:
    forced = getattr(numba.core.config, "CPU_FEATURES", None)
    return "+avx512f" in (forced or llvmlite.binding.get_host_cpu_features().flatten())


WIDE = _has_wide_vectors()
"""Whether this machine has thirty-two registers of 16 float32."""


def _number(value: int) -> Any:
    return ir.Constant(_INTEGER, value)


def _key(builder: Any, count: Any, vectors: Any, lanes: Any) -> Any:
    return builder.add(count, builder.mul(_number(16), builder.add(vectors, builder.mul(_number(16), lanes))))


def _for_shape(
    builder: Any, numbers: Any, expand: Callable[[int, int, Any], None], shapes: Sequence[tuple[int, int, int]] = SHAPES
) -> None:
    """Expands a tile for every shape, and a switch that enters the one that the numbers name, or none."""
    after = builder.append_basic_block("tile_done")
    switch = builder.switch(_key(builder, *numbers), after)
    for count, vectors, lanes in shapes:
        block = builder.append_basic_block(f"tile_{count}_{vectors}_{lanes}")
        switch.add_case(_number(count + 16 * (vectors + 16 * lanes)), block)
        builder.position_at_end(block)
        expand(count, vectors, float_vector(lanes))
        builder.branch(after)
    builder.position_at_end(after)


def _tile(builder: Any, vector: Any, count: int, width: int) -> list[list[Any]]:
    """Returns places for a tile of vectors; the compiler turns them into registers."""
    return [[cgutils.alloca_once(builder, vector) for _ in range(width)] for _ in range(count)]


def _accumulate(builder: Any, sums: list[list[Any]], scalars: Callable[[int], Any], vectors: list[Any]) -> None:
    """sums[i][j] += scalars(i) * vectors[j]."""
    for row, places in enumerate(sums):
        value = spread(builder, scalars(row), vectors[0].type)
        for place, other in zip(places, vectors, strict=True):
            builder.store(multiply_add(builder, value, other, builder.load(place)), place)


def _neighbours(context: Any, builder: Any, array_type: Any, array: Any, start: Any, vector: Any, width: int) -> Any:
    """Returns `width` vectors that lie side by side."""
    places = [builder.add(start, _number(vector.count * v)) for v in range(width)]
    return [load_vector(builder, address(context, builder, array_type, array, at), vector) for at in places]


@intrinsic
def sum_tile(
    typing: Any, x: Any, x_at: Any, x_row: Any, x_step: Any, w: Any, w_at: Any, rows: Any, run: Any,
    out: Any, out_at: Any, out_step: Any, pixels: Any, vectors: Any, lanes: Any,
) -> Any:  # fmt: skip
    """Sums over the taps of neighbouring windows, for `pixels` of them and a panel of vectors * lanes maps.

    out[out_at + p*out_step + m] = sum over dy < rows, t < run of x[x_at + p*x_step + dy*x_row + t] *
    w[w_at + (dy*run + t) * vectors * lanes + m].
    """
    signature = types.void(x, SIZE, SIZE, SIZE, w, SIZE, SIZE, SIZE, out, SIZE, SIZE, SIZE, SIZE, SIZE)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_, x_at_, x_row_, x_step_, w_, w_at_, rows_, run_, out_, out_at_, out_step_, *numbers = arguments

        def one(count: int, width: int, vector: Any) -> None:
            sums, panel = _tile(builder, vector, count, width), _number(vector.count * width)
            for place in (place for line in sums for place in line):
                builder.store(ir.Constant(vector, None), place)
            with cgutils.for_range(builder, rows_, intp=_INTEGER) as dy:
                x_line = plus(builder, x_at_, dy.index, x_row_)
                w_line = plus(builder, w_at_, builder.mul(dy.index, run_), panel)
                with cgutils.for_range(builder, run_, intp=_INTEGER) as t:
                    x_tap = builder.add(x_line, t.index)

                    def pixel(p: int) -> Any:
                        at = plus(builder, x_tap, _number(p), x_step_)
                        return builder.load(address(context, builder, signature.args[0], x_, at))

                    w_tap = plus(builder, w_line, t.index, panel)
                    weights = _neighbours(context, builder, signature.args[4], w_, w_tap, vector, width)
                    _accumulate(builder, sums, pixel, weights)
            for p in range(count):
                line = plus(builder, out_at_, _number(p), out_step_)
                for v in range(width):
                    place = builder.add(line, _number(vector.count * v))
                    at = address(context, builder, signature.args[8], out_, place)
                    store_vector(builder, builder.load(sums[p][v]), at)

        _for_shape(builder, numbers, one)
        return context.get_dummy_value()

    return signature, expand


@intrinsic
def product_tile(
    typing: Any, e: Any, e_at: Any, e_row: Any, e_step: Any, x: Any, x_at: Any, x_row: Any, x_step: Any,
    rows: Any, columns: Any, out: Any, out_at: Any, out_step: Any, maps: Any, vectors: Any, lanes: Any,
) -> Any:  # fmt: skip
    """Adds up, over a block of pixels, the products of `maps` errors with a panel of vectors * lanes taps.

    out[out_at + m*out_step + t] += sum over r < rows, c < columns of e[e_at + r*e_row + c*e_step + m] *
    x[x_at + r*x_row + c*x_step + t].
    """
    signature = types.void(e, SIZE, SIZE, SIZE, x, SIZE, SIZE, SIZE, SIZE, SIZE, out, SIZE, SIZE, SIZE, SIZE, SIZE)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e_, e_at_, e_row_, e_step_, x_, x_at_, x_row_, x_step_, *rest = arguments
        rows_, columns_, out_, out_at_, out_step_, *numbers = rest

        def one(count: int, width: int, vector: Any) -> None:
            sums = _tile(builder, vector, count, width)

            def place(m: int, v: int) -> Any:
                at = builder.add(plus(builder, out_at_, _number(m), out_step_), _number(vector.count * v))
                return address(context, builder, signature.args[10], out_, at)

            tile = [(m, v) for m in range(count) for v in range(width)]
            for m, v in tile:
                builder.store(load_vector(builder, place(m, v), vector), sums[m][v])
            with cgutils.for_range(builder, rows_, intp=_INTEGER) as row:
                e_line = plus(builder, e_at_, row.index, e_row_)
                x_line = plus(builder, x_at_, row.index, x_row_)
                with cgutils.for_range(builder, columns_, intp=_INTEGER) as column:
                    e_pixel = plus(builder, e_line, column.index, e_step_)

                    def error(m: int) -> Any:
                        at = builder.add(e_pixel, _number(m))
                        return builder.load(address(context, builder, signature.args[0], e_, at))

                    x_pixel = plus(builder, x_line, column.index, x_step_)
                    windows = _neighbours(context, builder, signature.args[4], x_, x_pixel, vector, width)
                    _accumulate(builder, sums, error, windows)
            for m, v in tile:
                store_vector(builder, builder.load(sums[m][v]), place(m, v))

        _for_shape(builder, numbers, one)
        return context.get_dummy_value()

    return signature, expand


@intrinsic
def list_tile(
    typing: Any, x: Any, x_at: Any, x_row: Any, place: Any, factor: Any, first: Any, last: Any,
    out: Any, out_at: Any, out_row: Any, rows: Any, vectors: Any, lanes: Any,
) -> Any:  # fmt: skip
    """Adds up the blocks of `rows` x vectors * lanes numbers that a list names, each times the list's factor.

    out[out_at + r*out_row + i] += sum over first <= j < last of factor[j] *
    x[place[j] + x_at + r*x_row + i]; places are int32.
    """
    signature = types.void(x, SIZE, SIZE, place, factor, SIZE, SIZE, out, SIZE, SIZE, SIZE, SIZE, SIZE)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_, x_at_, x_row_, place_, factor_, first_, last_, out_, out_at_, out_row_, *numbers = arguments
        x_type, place_type, factor_type, out_type = (signature.args[n] for n in (0, 3, 4, 7))

        def one(count: int, width: int, vector: Any) -> None:
            sums = _tile(builder, vector, count, width)
            lines = [plus(builder, out_at_, _number(r), out_row_) for r in range(count)]
            for r in range(count):
                old = _neighbours(context, builder, out_type, out_, lines[r], vector, width)
                for v in range(width):
                    builder.store(old[v], sums[r][v])
            with cgutils.for_range_slice(builder, first_, last_, _number(1), intp=_INTEGER) as (j, _):
                at = builder.sext(builder.load(address(context, builder, place_type, place_, j)), _INTEGER)
                start = builder.add(x_at_, at)
                scale = spread(builder, builder.load(address(context, builder, factor_type, factor_, j)), vector)
                for r in range(count):
                    line = plus(builder, start, _number(r), x_row_)
                    block = _neighbours(context, builder, x_type, x_, line, vector, width)
                    for v in range(width):
                        builder.store(multiply_add(builder, scale, block[v], builder.load(sums[r][v])), sums[r][v])
            for r in range(count):
                for v in range(width):
                    to = address(context, builder, out_type, out_, builder.add(lines[r], _number(vector.count * v)))
                    store_vector(builder, builder.load(sums[r][v]), to)

        _for_shape(builder, numbers, one, LIST_SHAPES)
        return context.get_dummy_value()

    return signature, expand

"""The inner loops of a convolution: register tiles of sums over taps, over pixels, and over listed errors.

A tile is `count` x `vectors` vectors of `lanes` numbers. Each kind of tile of each panel (`adamctl.kernels.tiling`) is
a function of its own with addresses and whole numbers for arguments, compiled when a layer first needs it and called
through its address, which lies in the table of panels: expanded in place, all tiles of all panels in every kernel take
longer to compile than everything else. As in `adamctl.kernels.compiled.vectors`, arrays are 1-D float32 and nothing is
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped, unused-ignore]
import numba.core.config
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numpy.typing import NDArray

from adamctl.kernels.compiled.jit import callback
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
REGISTERS = 24  # sums a tile may hold
COUNTS = (1, 2, 4, 5, 6, 8)
LIST_COUNTS = (1, 2, 3, 5, 7)
"""Row counts of `list_tile`: kernels have 3, 5 or 7 rows."""
_INTEGER = ir.IntType(64)
_FLOAT = ir.FloatType().as_pointer()
_INT32 = ir.IntType(32).as_pointer()


def _has_wide_vectors() -> bool:
    forced = getattr(numba.core.config, "CPU_FEATURES", None)
    return "+avx512f" in (forced or llvmlite.binding.get_host_cpu_features().flatten())


WIDE = _has_wide_vectors()
"""Whether this machine has thirty-two registers of 16 float32."""


def with_tiles(panels: NDArray[np.int64], kind: str) -> NDArray[np.int64]:
    """Returns panels with one more column: the address of their tiles, of kind "sums", "products" or "listed"."""
    make = {"sums": sums_of, "products": products_of, "listed": listed_of}[kind]
    addresses = [make(int(vectors), int(lanes)).address for _, vectors, lanes, _ in panels]
    return np.column_stack((panels, np.array(addresses, np.int64)))


@cache
def sums_of(vectors: int, lanes: int) -> Any:
    """Returns the function behind `sum_tile` for panels of this width."""

    def sums(x, x_row, x_step, w, rows, run, out, out_step, pixels):  # type: ignore[no-untyped-def]
        _sums(x, x_row, x_step, w, rows, run, out, out_step, pixels, vectors, lanes)

    return callback(sums, f"sums_{vectors}x{lanes}", 9)


@cache
def products_of(vectors: int, lanes: int) -> Any:
    """Returns the function behind `product_tile` for panels of this width."""

    def products(e, e_row, e_step, x, x_row, x_step, rows, columns, out, out_step, maps):  # type: ignore[no-untyped-def]
        _products(e, e_row, e_step, x, x_row, x_step, rows, columns, out, out_step, maps, vectors, lanes)

    return callback(products, f"products_{vectors}x{lanes}", 11)


@cache
def listed_of(vectors: int, lanes: int) -> Any:
    """Returns the function behind `list_tile` for panels of this width."""

    def listed(x, x_row, place, factor, count, out, out_row, rows):  # type: ignore[no-untyped-def]
        _listed(x, x_row, place, factor, count, out, out_row, rows, vectors, lanes)

    return callback(listed, f"listed_{vectors}x{lanes}", 8)


def _number(value: int) -> Any:
    return ir.Constant(_INTEGER, value)


Body = Callable[[Any, Sequence[Any], int, int, Any], None]


def _expand(body: Body, counts: Sequence[int], arguments: Sequence[Any]) -> Any:
    """Returns an intrinsic's result; its last arguments are the tile's count and, as literals, vectors and lanes."""
    if not all(isinstance(argument, types.Literal) for argument in arguments[-2:]):
        return None
    width, lanes = (literal.literal_value for literal in arguments[-2:])

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *values, count, _, _ = arguments
        after = builder.append_basic_block("tile_done")
        switch = builder.switch(count, after)
        for known in counts:
            if known * width <= REGISTERS:
                block = builder.append_basic_block(f"tile_{known}")
                switch.add_case(_number(known), block)
                builder.position_at_end(block)
                body(builder, values, known, width, float_vector(lanes))
                builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*arguments), expand


def _tile(builder: Any, vector: Any, count: int, width: int) -> list[list[Any]]:
    """Returns places for a tile of vectors; the compiler turns them into registers."""
    return [[cgutils.alloca_once(builder, vector) for _ in range(width)] for _ in range(count)]


def _accumulate(builder: Any, sums: list[list[Any]], scalars: Callable[[int], Any], vectors: list[Any]) -> None:
    """sums[i][j] += scalars(i) * vectors[j]."""
    for row, places in enumerate(sums):
        value = spread(builder, scalars(row), vectors[0].type)
        for place, other in zip(places, vectors, strict=True):
            builder.store(multiply_add(builder, value, other, builder.load(place)), place)


def _at(builder: Any, array: Any, index: Any, further: int = 0) -> Any:
    """Returns the address of array[index + further]."""
    return builder.gep(array, [builder.add(index, _number(further))])


def _neighbours(builder: Any, array: Any, start: Any, vector: Any, width: int) -> Any:
    """Returns `width` adjacent vectors."""
    return [load_vector(builder, _at(builder, array, start, vector.count * v), vector) for v in range(width)]


def _pointers(builder: Any, arguments: Sequence[Any], which: Sequence[int]) -> list[Any]:
    """Returns the arguments with those that are addresses made pointers."""
    return [builder.inttoptr(value, _FLOAT) if position in which else value for position, value in enumerate(arguments)]


def _sum_body(builder: Any, arguments: Sequence[Any], count: int, width: int, vector: Any) -> None:
    x, x_row, x_step, w, rows, run, out, out_step = _pointers(builder, arguments, (0, 3, 6))
    sums, panel = _tile(builder, vector, count, width), _number(vector.count * width)
    for place in (place for line in sums for place in line):
        builder.store(ir.Constant(vector, None), place)
    with cgutils.for_range(builder, rows, intp=_INTEGER) as dy:
        x_line = builder.mul(dy.index, x_row)
        w_line = builder.mul(builder.mul(dy.index, run), panel)
        with cgutils.for_range(builder, run, intp=_INTEGER) as t:
            x_tap = builder.add(x_line, t.index)

            def pixel(p: int) -> Any:
                return builder.load(_at(builder, x, plus(builder, x_tap, _number(p), x_step)))

            weights = _neighbours(builder, w, plus(builder, w_line, t.index, panel), vector, width)
            _accumulate(builder, sums, pixel, weights)
    for p in range(count):
        line = builder.mul(_number(p), out_step)
        for v in range(width):
            store_vector(builder, builder.load(sums[p][v]), _at(builder, out, line, vector.count * v))


def _product_body(builder: Any, arguments: Sequence[Any], count: int, width: int, vector: Any) -> None:
    pointers = _pointers(builder, arguments, (0, 3, 8))
    e, e_row, e_step, x, x_row, x_step, rows, columns, out, out_step = pointers
    sums = _tile(builder, vector, count, width)

    def place(m: int, v: int) -> Any:
        return _at(builder, out, builder.mul(_number(m), out_step), vector.count * v)

    tile = [(m, v) for m in range(count) for v in range(width)]
    for m, v in tile:
        builder.store(load_vector(builder, place(m, v), vector), sums[m][v])
    with cgutils.for_range(builder, rows, intp=_INTEGER) as row:
        e_line = builder.mul(row.index, e_row)
        x_line = builder.mul(row.index, x_row)
        with cgutils.for_range(builder, columns, intp=_INTEGER) as column:
            e_pixel = plus(builder, e_line, column.index, e_step)

            def error(m: int) -> Any:
                return builder.load(_at(builder, e, e_pixel, m))

            windows = _neighbours(builder, x, plus(builder, x_line, column.index, x_step), vector, width)
            _accumulate(builder, sums, error, windows)
    for m, v in tile:
        store_vector(builder, builder.load(sums[m][v]), place(m, v))


def _listed_body(builder: Any, arguments: Sequence[Any], count: int, width: int, vector: Any) -> None:
    x, x_row, place, factor, size, out, out_row = _pointers(builder, arguments, (0, 2, 3, 5))
    place = builder.bitcast(place, _INT32)
    sums = _tile(builder, vector, count, width)
    lines = [builder.mul(_number(r), out_row) for r in range(count)]
    for r in range(count):
        for value, held in zip(_neighbours(builder, out, lines[r], vector, width), sums[r], strict=True):
            builder.store(value, held)
    with cgutils.for_range(builder, size, intp=_INTEGER) as entry:
        j = entry.index
        start = builder.sext(builder.load(_at(builder, place, j)), _INTEGER)
        scale = spread(builder, builder.load(_at(builder, factor, j)), vector)
        for r in range(count):
            block = _neighbours(builder, x, plus(builder, start, _number(r), x_row), vector, width)
            for value, held in zip(block, sums[r], strict=True):
                builder.store(multiply_add(builder, scale, value, builder.load(held)), held)
    for r in range(count):
        for v in range(width):
            store_vector(builder, builder.load(sums[r][v]), _at(builder, out, lines[r], vector.count * v))


@intrinsic
def _sums(
    typing: Any, x: Any, x_row: Any, x_step: Any, w: Any, rows: Any, run: Any,
    out: Any, out_step: Any, pixels: Any, vectors: Any, lanes: Any,
) -> Any:  # fmt: skip
    return _expand(_sum_body, COUNTS, (x, x_row, x_step, w, rows, run, out, out_step, pixels, vectors, lanes))


@intrinsic
def _products(
    typing: Any, e: Any, e_row: Any, e_step: Any, x: Any, x_row: Any, x_step: Any,
    rows: Any, columns: Any, out: Any, out_step: Any, maps: Any, vectors: Any, lanes: Any,
) -> Any:  # fmt: skip
    return _expand(
        _product_body, COUNTS, (e, e_row, e_step, x, x_row, x_step, rows, columns, out, out_step, maps, vectors, lanes)
    )


@intrinsic
def _listed(
    typing: Any, x: Any, x_row: Any, place: Any, factor: Any, count: Any,
    out: Any, out_row: Any, rows: Any, vectors: Any, lanes: Any,
) -> Any:  # fmt: skip
    return _expand(_listed_body, LIST_COUNTS, (x, x_row, place, factor, count, out, out_row, rows, vectors, lanes))


def _call(context: Any, builder: Any, signature: Any, arguments: Sequence[Any], begins: Sequence[int]) -> Any:
    """Calls the address that is the first argument; arrays go as the address of the element that `begins` names.

    `begins` holds, for each array in turn, the position of the argument with its first element; these are not passed.
    """
    following = iter(begins)
    passed = []
    for position, (kind, value) in enumerate(zip(signature.args, arguments, strict=True)):
        if isinstance(kind, types.Array):
            begin = arguments[next(following)]
            passed.append(builder.ptrtoint(address(context, builder, kind, value, begin), _INTEGER))
        elif position and position not in begins:
            passed.append(value)
    kind = ir.FunctionType(ir.VoidType(), [_INTEGER] * len(passed))
    builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), passed)
    return context.get_dummy_value()


@intrinsic
def sum_tile(
    typing: Any, tile: Any, x: Any, x_at: Any, x_row: Any, x_step: Any, w: Any, w_at: Any, rows: Any, run: Any,
    out: Any, out_at: Any, out_step: Any, pixels: Any,
) -> Any:  # fmt: skip
    """Sums over the taps of neighbouring windows, for `pixels` of them and a panel of vectors * lanes maps.

    out[out_at + p*out_step + m] = sum over dy < rows, t < run of x[x_at + p*x_step + dy*x_row + t] *
    w[w_at + (dy*run + t) * vectors * lanes + m]; `tile` is the address that belongs to the panel.
    """
    signature = types.void(SIZE, x, SIZE, SIZE, SIZE, w, SIZE, SIZE, SIZE, out, SIZE, SIZE, SIZE)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(context, builder, signature, arguments, (2, 6, 10))

    return signature, expand


@intrinsic
def product_tile(
    typing: Any, tile: Any, e: Any, e_at: Any, e_row: Any, e_step: Any, x: Any, x_at: Any, x_row: Any, x_step: Any,
    rows: Any, columns: Any, out: Any, out_at: Any, out_step: Any, maps: Any,
) -> Any:  # fmt: skip
    """Adds up, over a block of pixels, the products of `maps` errors with a panel of vectors * lanes taps.

    out[out_at + m*out_step + t] += sum over r < rows, c < columns of e[e_at + r*e_row + c*e_step + m] *
    x[x_at + r*x_row + c*x_step + t].
    """
    signature = types.void(SIZE, e, SIZE, SIZE, SIZE, x, SIZE, SIZE, SIZE, SIZE, SIZE, out, SIZE, SIZE, SIZE)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(context, builder, signature, arguments, (2, 6, 12))

    return signature, expand


@intrinsic
def list_tile(
    typing: Any, tile: Any, x: Any, x_at: Any, x_row: Any, place: Any, factor: Any, first: Any, count: Any,
    out: Any, out_at: Any, out_row: Any, rows: Any,
) -> Any:  # fmt: skip
    """Adds up the blocks of `rows` x vectors * lanes numbers that a list names, each times the list's factor.

    out[out_at + r*out_row + i] += sum over first <= j < first + count of factor[j] *
    x[place[j] + x_at + r*x_row + i]; places are int32.
    """
    signature = types.void(SIZE, x, SIZE, SIZE, place, factor, SIZE, SIZE, out, SIZE, SIZE, SIZE)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(context, builder, signature, arguments, (2, 6, 6, 9))

    return signature, expand

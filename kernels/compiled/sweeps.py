"""Sweeps over blocks of float32 that compute in float64, in the order that `adamctl.kernels.numeric` defines.

They are LLVM instructions, as the compiler would neither keep eight sums of eight numbers in registers nor prove that
arrays do not overlap. A product of two float32 is exact in float64, so adding it may be fused or not: the bits are the
same. A product with a float64 factor is rounded, and is never fused.

Arrays come as addresses; what lies behind the last element is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numba
import numba.core.cgutils
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import f64, i64
from adamctl.kernels.compiled.rules import WORD, fetch, word
from adamctl.kernels.compiled.vectors import intrinsic, multiply_add, spread

cgutils: Any = numba.core.cgutils

LANES = 8
TOGETHER = 16  # elements of an iteration: a cache line
AHEAD_BYTES = 2048  # the hardware prefetcher starts anew with every block and every page
BLOCK = 4096  # elements
GRID = tuple((left, 4 + right) for left in range(4) for right in range(2))
PAIRS = tuple((2 * pair, 2 * pair + 1) for pair in range(4))

Value: TypeAlias = Any
_SINGLES = ir.VectorType(ir.FloatType(), LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_WORDS = ir.VectorType(WORD, LANES)
_NUMBERS = ir.VectorType(ir.IntType(32), LANES)
_BYTES = {_SINGLES: 4, _DOUBLES: 8, _WORDS: 8}
_SUFFIX = {_SINGLES: "f32", _DOUBLES: "f64", _WORDS: "i64"}
_ALIGNED = ir.Constant(ir.IntType(32), 4)


def _at(builder: Any, address: Value, kind: Any) -> Value:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Value, kind: Any = _DOUBLES) -> Value:
    return builder.load(_at(builder, address, kind), align=4)


def _store(builder: Any, value: Value, address: Value) -> None:
    builder.store(value, _at(builder, address, value.type), align=4)


class _Place:
    """Eight elements of a sweep: `number` is that of the first, `there` says which exist (None: all do)."""

    def __init__(self, builder: Any, number: Value, there: Value | None) -> None:
        self._builder, self.number, self._there = builder, number, there

    def address(self, array: Value, bytes_each: int) -> Value:
        return self._builder.add(array, self._builder.mul(self.number, word(bytes_each)))

    def load(self, array: Value, kind: Any = _SINGLES) -> Value:
        """Returns the elements, zeros for those that do not exist."""
        address = self.address(array, _BYTES[kind])
        if self._there is None:
            return _load(self._builder, address, kind)
        types_of = [kind.as_pointer(), ir.IntType(32), self._there.type, kind]
        function = self._masked("load", kind, ir.FunctionType(kind, types_of))
        zeros = ir.Constant(kind, None)
        return self._builder.call(function, [_at(self._builder, address, kind), _ALIGNED, self._there, zeros])

    def wide(self, array: Value) -> Value:
        """Returns float32 elements as float64."""
        return self._builder.fpext(self.load(array), _DOUBLES)

    def store(self, value: Value, array: Value) -> None:
        kind = value.type
        address = self.address(array, _BYTES[kind])
        if self._there is None:
            _store(self._builder, value, address)
            return
        types_of = [kind, kind.as_pointer(), ir.IntType(32), self._there.type]
        function = self._masked("store", kind, ir.FunctionType(ir.VoidType(), types_of))
        self._builder.call(function, [value, _at(self._builder, address, kind), _ALIGNED, self._there])

    def _masked(self, what: str, kind: Any, of: Any) -> Any:
        name = f"llvm.masked.{what}.v{LANES}{_SUFFIX[kind]}.p0"
        return cgutils.get_or_insert_function(self._builder.module, of, name)


def _sweep(
    builder: Any, count: Value, use: Callable[[_Place], None],
    read: Sequence[Value] = (), read_words: Sequence[Value] = (), written: Sequence[Value] = (),
) -> None:  # fmt: skip
    """Calls `use` for all of `count` elements, eight at a time, in order.

    Arrays of float32 that are read or written, and of int64 that are read, are prefetched.
    """
    whole = builder.udiv(count, word(TOGETHER))
    with cgutils.for_range(builder, whole, intp=WORD) as loop:
        for half in range(0, TOGETHER, LANES):
            place = _Place(builder, builder.add(builder.mul(loop.index, word(TOGETHER)), word(half)), None)
            for arrays, write in ((read, False), (written, True)):
                for array in arrays if not half else ():
                    fetch(builder, builder.add(place.address(array, 4), word(AHEAD_BYTES)), write)
            for array in read_words:
                fetch(builder, builder.add(place.address(array, 8), word(AHEAD_BYTES)))
            use(place)
    done = builder.mul(whole, word(TOGETHER))
    rest = builder.udiv(builder.add(builder.sub(count, done), word(LANES - 1)), word(LANES))
    with cgutils.for_range(builder, rest, intp=WORD) as loop:
        number = builder.add(done, builder.mul(loop.index, word(LANES)))
        left = spread(builder, builder.trunc(builder.sub(count, number), ir.IntType(32)), _NUMBERS)
        use(_Place(builder, number, builder.icmp_signed("<", ir.Constant(_NUMBERS, list(range(LANES))), left)))


def _total(builder: Any, value: Value) -> Value:
    """Returns the sum of eight numbers: halves are added until one is left."""
    for half in (4, 2, 1):
        places = ir.VectorType(ir.IntType(32), half)
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(places, list(range(start, start + half))))
            for start in (0, half)
        )
        value = builder.fadd(low, high)
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


def _dot_row(pairs: tuple[tuple[int, int], ...]) -> Any:
    """Makes `dot_row(table, offset, count, first, lanes, sums, stride)` for products of these pairs of vectors.

    table: addresses of the vectors, to which `offset` bytes are added; count: elements of the row, or of a part of it;
    first: whether it is the row's first part, else lanes [pairs, LANES] hold the sums so far. They are written, and to
    `sums` what they add up to, `stride` bytes apart.
    """
    vectors = 1 + max(max(pair) for pair in pairs)

    @intrinsic
    def dot_row(
        typing: Any, table: Any, offset: Any, count: Any, first: Any, lanes: Any, sums: Any, stride: Any
    ) -> Any:  # fmt: skip
        signature = types.void(i64, i64, i64, types.boolean, i64, i64, i64)

        def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            table_, offset_, count_, first_, lanes_, sums_, stride_ = arguments
            start = [
                builder.add(_load(builder, builder.add(table_, word(8 * vector)), WORD), offset_)
                for vector in range(vectors)
            ]
            new = spread(builder, builder.trunc(first_, ir.IntType(1)), ir.VectorType(ir.IntType(1), LANES))
            places = [builder.add(lanes_, word(8 * LANES * pair)) for pair in range(len(pairs))]
            totals = []
            for place in places:
                before = builder.select(new, ir.Constant(_DOUBLES, None), _load(builder, place))
                totals.append(cgutils.alloca_once_value(builder, before))

            def use(place: _Place) -> None:
                values = [place.wide(vector) for vector in start]
                for total, (a, b) in zip(totals, pairs, strict=True):
                    builder.store(multiply_add(builder, values[a], values[b], builder.load(total)), total)

            _sweep(builder, count_, use, read=start if pairs == PAIRS else start[:4])
            for pair, (total, place) in enumerate(zip(totals, places, strict=True)):
                value = builder.load(total)
                _store(builder, value, place)
                target = builder.add(sums_, builder.mul(stride_, word(pair)))
                _store(builder, _total(builder, value), target)
            return context.get_dummy_value()

        return signature, expand

    return dot_row


dot_row_grid = _dot_row(GRID)
dot_row_pairs = _dot_row(PAIRS)


def _add_terms(terms: int) -> Any:
    """Makes `add_terms(table, factors, totals, count)`: totals[i] += factor * vector[i], one term after another.

    table, factors: addresses of the vectors, and the factors in float64; totals: float64.
    """

    @intrinsic
    def add_terms(typing: Any, table: Any, factors: Any, totals: Any, count: Any) -> Any:
        signature = types.void(i64, i64, i64, i64)

        def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            table_, factors_, totals_, count_ = arguments
            start = [_load(builder, builder.add(table_, word(8 * term)), WORD) for term in range(terms)]
            double = ir.DoubleType()
            by = [
                spread(builder, _load(builder, builder.add(factors_, word(8 * term)), double), _DOUBLES)
                for term in range(terms)
            ]

            def use(place: _Place) -> None:
                total = place.load(totals_, _DOUBLES)
                for factor, vector in zip(by, start, strict=True):
                    total = builder.fadd(total, builder.fmul(factor, place.wide(vector)))
                place.store(total, totals_)

            _sweep(builder, count_, use, read=start)
            return context.get_dummy_value()

        return signature, expand

    return add_terms


add_8_terms, add_4_terms, add_2_terms, add_1_term = (_add_terms(terms) for terms in (8, 4, 2, 1))


@intrinsic
def add_accumulated(typing: Any, accumulated: Any, scale: Any, factor: Any, totals: Any, count: Any) -> Any:
    """totals[i] += factor * (accumulated[i] * scale), accumulated int64 and all else float64."""
    signature = types.void(i64, f64, f64, i64, i64)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        accumulated_, scale_, factor_, totals_, count_ = arguments
        by, scales = spread(builder, factor_, _DOUBLES), spread(builder, scale_, _DOUBLES)

        def use(place: _Place) -> None:
            value = builder.sitofp(place.load(accumulated_, _WORDS), _DOUBLES)
            term = builder.fmul(by, builder.fmul(value, scales))
            place.store(builder.fadd(place.load(totals_, _DOUBLES), term), totals_)

        _sweep(builder, count_, use, read_words=[accumulated_])
        return context.get_dummy_value()

    return signature, expand


@intrinsic
def round_totals(typing: Any, totals: Any, out: Any, count: Any) -> Any:
    """out[i] = totals[i], rounded to float32."""
    signature = types.void(i64, i64, i64)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals_, out_, count_ = arguments

        def use(place: _Place) -> None:
            place.store(builder.fptrunc(place.load(totals_, _DOUBLES), _SINGLES), out_)

        _sweep(builder, count_, use, written=[out_])
        return context.get_dummy_value()

    return signature, expand


@intrinsic
def subtract(typing: Any, a: Any, b: Any, out: Any, count: Any) -> Any:
    """out[i] = a[i] - b[i] in float32."""
    signature = types.void(i64, i64, i64, i64)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a_, b_, out_, count_ = arguments

        def use(place: _Place) -> None:
            place.store(builder.fsub(place.load(a_), place.load(b_)), out_)

        _sweep(builder, count_, use, read=[a_, b_])
        return context.get_dummy_value()

    return signature, expand


@intrinsic
def add_without_error(typing: Any, numbers: Any, count: Any, pairs: Any) -> Any:
    """Adds vectors of LANES float64 to the pairs [2, LANES] at an address; returns how many of `count` were added.

    Each addition keeps what rounding loses (Knuth's two-sum): of the sum in the second number, and of that nothing
    may be lost. The first vector for which that fails, as it does for NaN and infinity, is not added.
    """
    signature = i64(i64, i64, i64)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers_, count_, pairs_ = arguments

        def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
            total = builder.fadd(a, b)
            of_b = builder.fsub(total, a)
            of_a = builder.fsub(total, of_b)
            return total, builder.fadd(builder.fsub(a, of_a), builder.fsub(b, of_b))

        lost_at = builder.add(pairs_, word(8 * LANES))
        held = cgutils.alloca_once_value(builder, _load(builder, pairs_))
        lost = cgutils.alloca_once_value(builder, _load(builder, lost_at))
        done = cgutils.alloca_once_value(builder, count_)
        with cgutils.for_range(builder, count_, intp=WORD) as loop:
            value = _load(builder, builder.add(numbers_, builder.mul(loop.index, word(8 * LANES))))
            total, error = two_sum(builder.load(held), value)
            errors, rest = two_sum(builder.load(lost), error)
            exact = builder.fcmp_ordered("==", rest, ir.Constant(_DOUBLES, None))
            mask = builder.bitcast(exact, ir.IntType(LANES))
            with cgutils.if_unlikely(builder, builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 255))):
                builder.store(loop.index, done)
                loop.do_break()
            builder.store(total, held)
            builder.store(errors, lost)
        _store(builder, builder.load(held), pairs_)
        _store(builder, builder.load(lost), lost_at)
        return builder.load(done)

    return signature, expand


@intrinsic
def nearest(typing: Any, number: Any) -> Any:
    """The integer nearest to a float64, as a float64; of two the even one."""

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        double = ir.DoubleType()
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(double, [double]), "llvm.rint.f64")
        return builder.call(function, arguments)

    return f64(f64), expand

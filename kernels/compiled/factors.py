"""Factor updates (Adam 3.2.6, 4.3.2): a rule applied to g = errors^T activations, without g ever being in memory.

A tile of the gradient, a few rows by a few vectors, is summed in registers over all examples and then given to the
rule's own step, which updates the weights there. Both factors are first packed: of `errors` the rows of a tile, of
`activations` the columns of a tile, example after example, so that the sums read memory in order. Packing the
activations once serves all shards of a layer; the weights are asked for while their tile is being summed.

packed[p, e, i] = matrix[e, start + p * width + i], zero beyond `stop`: flat, panels of `width` numbers per example.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding  # type: ignore[import-untyped, unused-ignore]
import numba.core.cgutils
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import IN1, IN2, OUT1, i64, kernel
from adamctl.kernels.compiled.rules import ADDRESSES, RULES, Step, Value, Vector, items, word
from adamctl.kernels.compiled.vectors import intrinsic

cgutils: Any = numba.core.cgutils

WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
LANES, ROWS, VECTORS = (16, 8, 3) if WIDE else (8, 6, 2)  # sums that fit into 32 or 16 vector registers
COLUMNS = LANES * VECTORS
LINES = (*range(0, 4 * COLUMNS, 64), 4 * COLUMNS - 4)  # bytes: one in each cache line of a row, wherever it begins


@kernel((IN2, i64, i64, i64, OUT1))
def pack(matrix: Any, start: int, stop: int, width: int, packed: Any) -> None:
    """Packs columns [start, stop) of a matrix [examples, columns] into panels of `width`."""
    examples = matrix.shape[0]
    panels = (stop - start + width - 1) // width
    for example in range(examples):
        row = matrix[example]
        for panel in range(panels):
            first = start + panel * width
            target = packed[(panel * examples + example) * width : (panel * examples + example + 1) * width]
            for i in range(min(width, stop - first)):
                target[i] = row[first + i]
            for i in range(stop - first, width):
                target[i] = 0


@intrinsic
def _run(
    typing: Any, rule: Any, before: Any, after: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any,
    examples: Any, rows: Any, columns: Any,
) -> Any:  # fmt: skip
    """Walks over the tiles of a shard: panels of columns, and in each all panels of rows."""
    if not isinstance(rule, types.StringLiteral):
        return None
    name = rule.literal_value
    signature = types.void(rule, i64, i64, state, errors, activations, own, shared, i64, i64, i64)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, before_, after_, state_, errors_, activations_, own_, shared_, examples_, rows_, columns_ = arguments
        arrays = (state_, errors_, activations_, own_, shared_)
        data = [
            cgutils.create_struct_proxy(kind)(context, builder, array).data
            for kind, array in zip(signature.args[3:8], arrays, strict=True)
        ]
        tile = _Tile(builder, RULES[name], (before_, after_), data, examples_, columns_)
        across = builder.udiv(builder.add(columns_, word(COLUMNS - 1)), word(COLUMNS))
        down = builder.udiv(builder.add(rows_, word(ROWS - 1)), word(ROWS))
        with (
            cgutils.for_range(builder, across, intp=columns_.type) as column,
            cgutils.for_range(builder, down, intp=columns_.type) as row,
        ):
            left = builder.sub(rows_, builder.mul(row.index, word(ROWS)))
            left = builder.select(builder.icmp_signed("<", left, word(ROWS)), left, word(ROWS))
            tile.sum(row.index, column.index, left)
            tile.apply(row.index, column.index, left)
        return context.get_dummy_value()

    return signature, expand


class _Tile:
    """Makes the instructions for one tile; `sums` is where a tile lies between its sum and its rule."""

    def __init__(
        self, builder: Any, rule: tuple[Step, int, int, int], addresses: tuple[Value, Value], data: list[Value],
        examples: Value, columns: Value,
    ) -> None:  # fmt: skip
        self.builder = builder
        self.step, states, owns, shareds = rule
        self.before, self.after = addresses
        self.states = items(builder, data[0], states)
        self.errors, self.activations = (builder.ptrtoint(array, word(0).type) for array in data[1:3])
        self.own, self.shared = items(builder, data[3], owns), items(builder, data[4], shareds)
        self.examples, self.columns = examples, columns
        kind = ir.ArrayType(ir.FloatType(), ROWS * COLUMNS)
        self.sums = builder.ptrtoint(cgutils.alloca_once(builder, kind), word(0).type)

    def sum(self, row: Value, column: Value, rows: Value) -> None:
        """Sums the tile over all examples, while the weights and state it will be applied to are on their way."""
        builder, v = self.builder, Vector(self.builder, LANES)
        zero = ir.Constant(v.type, None)
        held = [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(ROWS)]
        for place in (place for line in held for place in line):
            builder.store(zero, place)
        self._fetch(v, row, column, rows)
        errors = builder.add(self.errors, builder.mul(builder.mul(row, self.examples), word(4 * ROWS)))
        activations = builder.add(self.activations, builder.mul(builder.mul(column, self.examples), word(4 * COLUMNS)))
        with cgutils.for_range(builder, self.examples, intp=row.type) as example:
            inputs = builder.add(activations, builder.mul(example.index, word(4 * COLUMNS)))
            values = [v.load(builder.add(inputs, word(4 * LANES * n))) for n in range(VECTORS)]
            outputs = builder.add(errors, builder.mul(example.index, word(4 * ROWS)))
            for r in range(ROWS):
                address = builder.inttoptr(builder.add(outputs, word(4 * r)), ir.FloatType().as_pointer())
                error = v.everywhere(builder.load(address))
                for n in range(VECTORS):
                    builder.store(v.multiply_add(error, values[n], builder.load(held[r][n])), held[r][n])
        for r in range(ROWS):
            for n in range(VECTORS):
                v.store(builder.load(held[r][n]), builder.add(self.sums, word(4 * (r * COLUMNS + n * LANES))))

    def _fetch(self, v: Vector, row: Value, column: Value, rows: Value) -> None:
        builder = self.builder
        with cgutils.for_range(builder, rows, intp=row.type) as r:
            offset = self._offset(row, column, r.index)
            for array in (self.before, *self.states):
                for line in LINES:
                    v.fetch(builder.add(array, builder.add(offset, word(line))))

    def _offset(self, row: Value, column: Value, r: Value) -> Value:
        """Returns the distance in bytes from the shard's first element to the tile's first of its row `r`."""
        builder = self.builder
        lines = builder.mul(builder.add(builder.mul(row, word(ROWS)), r), self.columns)
        return builder.mul(builder.add(lines, builder.mul(column, word(COLUMNS))), word(4))

    def apply(self, row: Value, column: Value, rows: Value) -> None:
        """Gives the tile to the rule: whole vectors, then what is left at the end of the rows."""
        builder = self.builder
        left = builder.sub(self.columns, builder.mul(column, word(COLUMNS)))
        left = builder.select(builder.icmp_signed("<", left, word(COLUMNS)), left, word(COLUMNS))
        whole = builder.udiv(left, word(LANES))
        covered = builder.mul(whole, word(LANES))
        with cgutils.for_range(builder, rows, intp=row.type) as r:
            to, at = self._offset(row, column, r.index), builder.mul(r.index, word(4 * COLUMNS))
            self._apply_some(LANES, builder.add(self.sums, at), to, whole)
            rest = builder.mul(covered, word(4))
            self._apply_some(1, builder.add(builder.add(self.sums, at), rest), builder.add(to, rest),
                             builder.sub(left, covered))  # fmt: skip

    def _apply_some(self, lanes: int, sums: Value, offset: Value, steps: Value) -> None:
        builder, v = self.builder, Vector(self.builder, lanes)
        own, shared = ([v.everywhere(one) for one in numbers] for numbers in (self.own, self.shared))
        with cgutils.for_range(builder, steps, intp=offset.type) as loop:
            further = builder.mul(loop.index, word(4 * lanes))
            place = builder.add(offset, further)
            held = [v.load(builder.add(array, place)) for array in self.states]
            weights = v.load(builder.add(self.before, place))
            gradient = v.load(builder.add(sums, further))
            weights, held = self.step(v, weights, held, gradient, own, shared)
            v.store(weights, builder.add(self.after, place))
            for value, array in zip(held, self.states, strict=True):
                v.store(value, builder.add(array, place))


ARGUMENTS = (i64, i64, ADDRESSES, IN1, IN1, IN1, IN1, i64, i64, i64)


@kernel(ARGUMENTS, relaxed=False)
def add(
    before: int, after: int, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """As the rule of this name in `rules`, of one gradient [rows, columns] given as packed factors."""
    _run("add", before, after, state, errors, activations, own, shared, examples, rows, columns)


@kernel(ARGUMENTS, relaxed=False)
def sgd(
    before: int, after: int, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """As the rule of this name in `rules`, of one gradient [rows, columns] given as packed factors."""
    _run("sgd", before, after, state, errors, activations, own, shared, examples, rows, columns)


@kernel(ARGUMENTS, relaxed=False)
def momentum(
    before: int, after: int, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """As the rule of this name in `rules`, of one gradient [rows, columns] given as packed factors."""
    _run("momentum", before, after, state, errors, activations, own, shared, examples, rows, columns)


@kernel(ARGUMENTS, relaxed=False)
def nesterov(
    before: int, after: int, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """As the rule of this name in `rules`, of one gradient [rows, columns] given as packed factors."""
    _run("nesterov", before, after, state, errors, activations, own, shared, examples, rows, columns)


@kernel(ARGUMENTS, relaxed=False)
def adagrad(
    before: int, after: int, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """As the rule of this name in `rules`, of one gradient [rows, columns] given as packed factors."""
    _run("adagrad", before, after, state, errors, activations, own, shared, examples, rows, columns)


@kernel(ARGUMENTS, relaxed=False)
def rmsprop(
    before: int, after: int, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """As the rule of this name in `rules`, of one gradient [rows, columns] given as packed factors."""
    _run("rmsprop", before, after, state, errors, activations, own, shared, examples, rows, columns)


@kernel(ARGUMENTS, relaxed=False)
def adam(
    before: int, after: int, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int,
    rows: int, columns: int,
) -> None:  # fmt: skip
    """As the rule of this name in `rules`, of one gradient [rows, columns] given as packed factors."""
    _run("adam", before, after, state, errors, activations, own, shared, examples, rows, columns)

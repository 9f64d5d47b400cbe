"""Factor updates (Adam 3.2.6, 4.3.2): apply a rule to g = errors^T activations without ever storing g in memory.

A tile of the gradient, a few rows by a few vectors, is summed in registers over all examples and then given to the
rule's own step, which updates the weights there. Both factors are first packed: of `errors` the rows of a tile, of
`activations` the columns of a tile, example after example, so that the sums read memory in order. Packing the
activations once serves all shards of a layer; the weights are asked for while their tile is being summed.

packed[p, e, i] = matrix[e, start + p * width + i], zero beyond the end: flat, panels of `width` numbers per example.
Of errors, the panels of each shard begin at its own first row.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding  # type: ignore[import-untyped, unused-ignore]
import numba.core.cgutils
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import IN1, IN2, OUT1, i64, kernel
from adamctl.kernels.compiled.rules import ADDRESSES, RULES, Step, Value, Vector, fetch, items, word
from adamctl.kernels.compiled.vectors import intrinsic

cgutils: Any = numba.core.cgutils

WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
LANES, ROWS, VECTORS = (16, 8, 3) if WIDE else (8, 6, 2)  # sums that fit into 32 or 16 vector registers
COLUMNS = LANES * VECTORS
SHARD_WORDS = 4  # of a shard: addresses of its weights before and after, where its packed errors begin, its rows
LINES = (*range(0, 4 * COLUMNS, 64), 4 * COLUMNS - 4)  # bytes: one in each cache line of a row, wherever it begins


# In both, whole panels are copied by loops of constant length: they take half the time of one loop for all.


@kernel((IN2, OUT1))
def pack_activations(matrix: Any, packed: Any) -> None:
    """Packs a matrix [examples, columns] into panels of COLUMNS."""
    examples, columns = matrix.shape
    whole = columns // COLUMNS
    rest = columns - whole * COLUMNS
    for example in range(examples):
        row = matrix[example]
        for panel in range(whole):
            source = row[panel * COLUMNS : (panel + 1) * COLUMNS]
            start = (panel * examples + example) * COLUMNS
            target = packed[start : start + COLUMNS]
            for i in range(COLUMNS):
                target[i] = source[i]
        if rest:
            start = (whole * examples + example) * COLUMNS
            for i in range(rest):
                packed[start + i] = row[whole * COLUMNS + i]
            for i in range(rest, COLUMNS):
                packed[start + i] = 0


@kernel((IN2, ADDRESSES, OUT1))
def pack_errors(matrix: Any, bounds: Any, packed: Any) -> None:
    """Packs columns [bounds[n], bounds[n + 1]) of a matrix [examples, columns], for each n, into panels of ROWS.

    All shards at once, so that each example's errors are read in order: shard by shard, most reads would miss the
    cache.
    """
    examples = len(matrix)
    for example in range(examples):
        row = matrix[example]
        start = example * ROWS
        for shard in range(len(bounds) - 1):
            first, rows = bounds[shard], bounds[shard + 1] - bounds[shard]
            whole = rows // ROWS
            rest = rows - whole * ROWS
            for panel in range(whole):
                source = row[first + panel * ROWS : first + (panel + 1) * ROWS]
                target = packed[start : start + ROWS]
                for i in range(ROWS):
                    target[i] = source[i]
                start += examples * ROWS
            if rest:
                for i in range(rest):
                    packed[start + i] = row[first + whole * ROWS + i]
                for i in range(rest, ROWS):
                    packed[start + i] = 0
                start += examples * ROWS


@intrinsic
def _run(
    typing: Any, rule: Any, shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any,
    examples: Any, columns: Any,
) -> Any:  # fmt: skip
    """Loops over shards and over each one's tiles: panels of columns, and in each of them all panels of rows."""
    if not isinstance(rule, types.StringLiteral):
        return None
    name = rule.literal_value
    signature = types.void(rule, shards, state, errors, activations, own, shared, i64, i64)

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *arrays, examples, columns = arguments[1:]
        views = [
            cgutils.create_struct_proxy(kind)(context, builder, array)
            for kind, array in zip(signature.args[1:7], arrays, strict=True)
        ]
        count = builder.udiv(views[0].nitems, word(SHARD_WORDS))
        across = builder.udiv(builder.add(columns, word(COLUMNS - 1)), word(COLUMNS))
        with cgutils.for_range(builder, count, intp=columns.type) as shard:
            tile = _Tile(builder, RULES[name], shard.index, [view.data for view in views], examples, columns)
            down = builder.udiv(builder.add(tile.rows, word(ROWS - 1)), word(ROWS))
            with (
                cgutils.for_range(builder, across, intp=columns.type) as column,
                cgutils.for_range(builder, down, intp=columns.type) as row,
            ):
                left = builder.sub(tile.rows, builder.mul(row.index, word(ROWS)))
                left = builder.select(builder.icmp_signed("<", left, word(ROWS)), left, word(ROWS))
                tile.sum(row.index, column.index, left)
                tile.apply(row.index, column.index, left)
        return context.get_dummy_value()

    return signature, expand


class _Tile:
    """Makes the instructions for the tiles of one shard; `sums` holds a tile between its sum and its rule."""

    def __init__(
        self, builder: Any, rule: tuple[Step, int, int, int], shard: Value, data: list[Value], examples: Value,
        columns: Value,
    ) -> None:  # fmt: skip
        self.builder = builder
        self.step, states, owns, shareds = rule
        shards, state, errors, activations, own, shared = data
        self.before, self.after, start, self.rows = items(
            builder, shards, SHARD_WORDS, builder.mul(shard, word(SHARD_WORDS))
        )
        self.states = items(builder, state, states, builder.mul(shard, word(states)))
        self.errors = builder.add(builder.ptrtoint(errors, shard.type), builder.mul(start, word(4)))
        self.activations = builder.ptrtoint(activations, shard.type)
        self.own = items(builder, own, owns, builder.mul(shard, word(owns)))
        self.shared = items(builder, shared, shareds)
        self.examples, self.columns = examples, columns
        kind = ir.ArrayType(ir.FloatType(), ROWS * COLUMNS)
        self.sums = builder.ptrtoint(cgutils.alloca_once(builder, kind), shard.type)

    def sum(self, row: Value, column: Value, rows: Value) -> None:
        """Sums the tile over all examples, while its weights and state are being prefetched."""
        builder, v = self.builder, Vector(self.builder, LANES)
        zero = ir.Constant(v.type, None)
        held = [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(ROWS)]
        for place in (place for line in held for place in line):
            builder.store(zero, place)
        self._fetch(row, column, rows)
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

    def _fetch(self, row: Value, column: Value, rows: Value) -> None:
        builder = self.builder
        with cgutils.for_range(builder, rows, intp=row.type) as r:
            offset = self._offset(row, column, r.index)
            for array in (self.before, *self.states):
                for line in LINES:
                    fetch(builder, builder.add(array, builder.add(offset, word(line))))

    def _offset(self, row: Value, column: Value, r: Value) -> Value:
        """Returns the distance in bytes from the shard's first element to the tile's first of its row `r`."""
        builder = self.builder
        lines = builder.mul(builder.add(builder.mul(row, word(ROWS)), r), self.columns)
        return builder.mul(builder.add(lines, builder.mul(column, word(COLUMNS))), word(4))

    def apply(self, row: Value, column: Value, rows: Value) -> None:
        """Applies the rule to the tile: whole vectors, then the rest at the end of the rows."""
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


ARGUMENTS = (ADDRESSES, ADDRESSES, IN1, IN1, IN1, IN1, i64, i64)


@kernel(ARGUMENTS, relaxed=False)
def add(
    shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int, columns: int
) -> None:
    """As the rule of this name in `rules`, for shards of a gradient [rows, columns] given as packed factors.

    `shards` holds SHARD_WORDS of each, `state` the addresses of each one's arrays, `own` each one's numbers.
    """
    _run("add", shards, state, errors, activations, own, shared, examples, columns)


@kernel(ARGUMENTS, relaxed=False)
def sgd(
    shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int, columns: int
) -> None:
    """As the rule of this name in `rules`, for shards as `add` has them."""
    _run("sgd", shards, state, errors, activations, own, shared, examples, columns)


@kernel(ARGUMENTS, relaxed=False)
def momentum(
    shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int, columns: int
) -> None:
    """As the rule of this name in `rules`, for shards as `add` has them."""
    _run("momentum", shards, state, errors, activations, own, shared, examples, columns)


@kernel(ARGUMENTS, relaxed=False)
def nesterov(
    shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int, columns: int
) -> None:
    """As the rule of this name in `rules`, for shards as `add` has them."""
    _run("nesterov", shards, state, errors, activations, own, shared, examples, columns)


@kernel(ARGUMENTS, relaxed=False)
def adagrad(
    shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int, columns: int
) -> None:
    """As the rule of this name in `rules`, for shards as `add` has them."""
    _run("adagrad", shards, state, errors, activations, own, shared, examples, columns)


@kernel(ARGUMENTS, relaxed=False)
def rmsprop(
    shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int, columns: int
) -> None:
    """As the rule of this name in `rules`, for shards as `add` has them."""
    _run("rmsprop", shards, state, errors, activations, own, shared, examples, columns)


@kernel(ARGUMENTS, relaxed=False)
def adam(
    shards: Any, state: Any, errors: Any, activations: Any, own: Any, shared: Any, examples: int, columns: int
) -> None:
    """As the rule of this name in `rules`, for shards as `add` has them."""
    _run("adam", shards, state, errors, activations, own, shared, examples, columns)

"""Commands of a round by numpy, one after another, as they are defined: the reference for compiled ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array
from adamctl.kernels.numeric.accumulate import Accumulator
from adamctl.kernels.numeric.exact_sums import Totals, row_sums
from adamctl.model.commands import ACCUMULATOR, Apply, Command, Elementwise, Operand, Reduce, Set

BLOCK = 1 << 15
"""Elements: blocks of float64 stay in a second-level cache."""


def _maximum(a: Array, b: Array) -> Array:
    return np.where((a >= b) | np.isnan(a), a, b)


def _minimum(a: Array, b: Array) -> Array:
    return np.where((a <= b) | np.isnan(a), a, b)


def _where(a: Array, b: Array, c: Array) -> Array:
    return np.where(a > 0, b, c)


ELEMENTWISE: dict[Elementwise, Callable[..., Array]] = {
    "multiply": np.multiply,
    "divide": np.divide,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "sign": np.sign,
    "maximum": _maximum,
    "minimum": _minimum,
    "where": _where,
}
"""NaN passes through all but `where`, which takes the third operand then; of equal numbers the first is taken."""


def run(
    commands: Sequence[Command],
    vectors: Mapping[str, Array],
    row_size: int,
    accumulator: Accumulator | None,
    totals: Totals,
) -> None:
    """Carries out checked commands on a shard whose vectors have rows of `row_size` elements."""
    elements = next(iter(vectors.values())).size
    rows_in_block = max(1, BLOCK // row_size)
    with np.errstate(all="ignore"):
        for start in range(0, elements, rows_in_block * row_size):
            part = slice(start, start + rows_in_block * row_size)
            block = {name: vector[part] for name, vector in vectors.items()}
            found = accumulator and Accumulator(accumulator.values[part], accumulator.fraction_bits)
            _run_block(commands, block, row_size, found, totals)


def _run_block(
    commands: Sequence[Command], block: Mapping[str, Array], row_size: int, accumulator: Accumulator | None,
    totals: Totals,
) -> None:  # fmt: skip
    number = 0
    for command in commands:
        if isinstance(command, Set):
            block[command.target][:] = _combination(command, block, accumulator)
        elif isinstance(command, Apply):
            operands = [_value(operand, block) for operand in command.operands]
            block[command.target][:] = ELEMENTWISE[command.operation](*operands)
        else:
            _reduce(command, number, [_value(operand, block) for operand in command.operands], row_size, totals)
            number += 1


def _combination(command: Set, block: Mapping[str, Array], accumulator: Accumulator | None) -> NDArray[np.float64]:
    total = None
    for factor, name in command.terms:
        if name == ACCUMULATOR and accumulator is not None:
            values = np.ldexp(accumulator.values.astype(np.float64), -accumulator.fraction_bits)
        else:
            values = block[name].astype(np.float64)
        values *= factor
        total = values if total is None else total + values
    return np.zeros(block[command.target].size) if total is None else total


def _value(operand: Operand, block: Mapping[str, Array]) -> Array:
    return block[operand[0]] - block[operand[1]] if len(operand) == 2 else block[operand[0]]


def _reduce(command: Reduce, number: int, values: list[Array], row_size: int, totals: Totals) -> None:
    if command.operation == "count_nonzero":
        totals.counts[number] += np.count_nonzero(values[0])
    elif command.operation == "max_abs":
        bits = np.abs(values[0]).view(np.uint32)  # NaN's are above infinity's
        totals.largest[number] = max(int(totals.largest[number]), int(bits.max(initial=0)))
    else:
        products = values[0].astype(np.float64)
        if command.operation == "dot":
            products *= values[1]
        totals.add(number, row_sums(products.reshape(-1, row_size)))

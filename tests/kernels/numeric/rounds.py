"""Vectors, and rounds of commands over them, for tests of what carries them out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from adamctl.kernels.numeric.accumulate import Accumulator
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.model.commands import ACCUMULATOR, OPERANDS, Apply, Command, Parts, Reduce, Set

VECTORS = ("a", "b", "c", "d", "e")
FRACTION_BITS = 40
ODD = [0.0, -0.0, 1e-45, -3e-39, 3e38, -3e38, math.inf, -math.inf, math.nan, 1.0, 2.0**-24]


def numbers(elements: int, seed: int = 0, odd: bool = False) -> dict[str, np.ndarray]:
    """Vectors of many sizes of numbers; with `odd`, some of them zero, tiny, huge or not finite."""
    generator = np.random.default_rng(seed)
    made = {}
    for name in VECTORS:
        scale = 2.0 ** generator.integers(-30, 30, elements)
        made[name] = (generator.standard_normal(elements) * scale).astype(np.float32)
        if odd:
            places = generator.random(elements) < 0.1
            made[name][places] = generator.choice(np.array(ODD, np.float32), int(places.sum()))
    return made


def accumulated(elements: int) -> Accumulator:
    values = np.random.default_rng(elements).integers(-(1 << 60), 1 << 60, elements)
    return Accumulator(values, FRACTION_BITS)


def carry_out(
    commands: Sequence[Command], vectors: dict[str, np.ndarray], row_size: int, backend: str,
    accumulator: Accumulator | None = None,
) -> list[Parts]:  # fmt: skip
    prepared = PreparedRound(commands, backend)
    totals = prepared.new_totals()
    prepared.run(vectors, row_size, totals, accumulator)
    return totals.parts()


def bits(vectors: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Of all numbers but NaN, of which there are many."""
    return {
        name: np.where(np.isnan(vector), np.float32(np.nan), vector).view(np.uint32).tolist()
        for name, vector in vectors.items()
    }


operand = st.one_of(
    st.tuples(st.sampled_from(VECTORS)), st.tuples(st.sampled_from(VECTORS), st.sampled_from(VECTORS))
)  # fmt: skip
term = st.tuples(
    st.floats(-1e10, 1e10), st.sampled_from((*VECTORS, ACCUMULATOR))
)  # fmt: skip


def with_operands(operation: str) -> st.SearchStrategy[tuple[str, tuple[tuple[str, ...], ...]]]:
    count = OPERANDS[operation]
    return st.tuples(st.just(operation), st.lists(operand, min_size=count, max_size=count).map(tuple))


applied = st.sampled_from(["multiply", "divide", "sqrt", "abs", "sign", "maximum", "minimum", "where"])
reduced = st.sampled_from(["dot", "dot", "dot", "sum", "max_abs", "count_nonzero"])
command = st.one_of(
    st.builds(Set, st.sampled_from(VECTORS), st.lists(term, max_size=20).map(tuple)),
    st.builds(lambda target, made: Apply(target, *made), st.sampled_from(VECTORS), applied.flatmap(with_operands)),
    reduced.flatmap(with_operands).map(lambda made: Reduce(*made)),
    reduced.flatmap(with_operands).map(lambda made: Reduce(*made)),
)
rounds = st.lists(command, min_size=1, max_size=30)

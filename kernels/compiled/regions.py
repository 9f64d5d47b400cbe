"""Blocks of one array copied or added into another: what partitions send to each other is put where it is used."""

from __future__ import annotations

from typing import Any

from adamctl.kernels.compiled.jit import IN1, OUT1, i64, kernel, readable
from adamctl.kernels.compiled.local import add_run, copy_run

PLACES = readable(i64, 2)
"""[2, 6] int64, of the target and of the source: where the block begins, the distances between examples and between
runs, in elements of the whole array, and the numbers of examples, of runs, and of elements in a run.
"""


@kernel((OUT1, IN1, PLACES))
def copy_block(target: Any, source: Any, places: Any) -> None:
    """target[block] = source[block]."""
    to, at = places[0], places[1]
    for example in range(to[3]):
        for run in range(to[4]):
            target_at, source_at = to[0] + example * to[1] + run * to[2], at[0] + example * at[1] + run * at[2]
            copy_run(target, target_at, source, source_at, to[5])


@kernel((OUT1, IN1, PLACES))
def add_block(target: Any, source: Any, places: Any) -> None:
    """target[block] += source[block]."""
    to, at = places[0], places[1]
    for example in range(to[3]):
        for run in range(to[4]):
            target_at, source_at = to[0] + example * to[1] + run * to[2], at[0] + example * at[1] + run * at[2]
            add_run(target, target_at, source, source_at, to[5])


@kernel((OUT1,))
def clear(target: Any) -> None:
    """target = 0."""
    target[:] = 0

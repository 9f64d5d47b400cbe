"""Accruing in ranges of a vector: a partition holds some of the parameters, and never touches the rest."""

from __future__ import annotations

from typing import Any

from adamctl.kernels.compiled.accrual import FLAG, accrue_and_move
from adamctl.kernels.compiled.jit import IN1, OUT1, f32, i64, kernel, readable

RANGES = readable(i64, 2)
"""[n, 2]: start and stop."""


@kernel((OUT1, OUT1, IN1, f32, FLAG, RANGES))
def fill_or_add_and_apply_ranges(accrued: Any, weights: Any, gradient: Any, lr: Any, filled: Any, ranges: Any) -> None:
    """As `accrual.fill_or_add_and_apply`, in ranges."""
    first = filled[0] == 0
    for number in range(len(ranges)):
        start, stop = ranges[number, 0], ranges[number, 1]
        accrue_and_move(accrued[start:stop], weights[start:stop], gradient[start:stop], lr, first)
    filled[0] = 1


@kernel((OUT1, IN1, FLAG, RANGES))
def fill_or_add_ranges(accrued: Any, gradient: Any, filled: Any, ranges: Any) -> None:
    """As `accrual.fill_or_add`, in ranges."""
    first = filled[0] == 0
    for number in range(len(ranges)):
        target, source = accrued[ranges[number, 0] : ranges[number, 1]], gradient[ranges[number, 0] : ranges[number, 1]]
        if first:
            for i in range(source.size):
                target[i] = source[i]
        else:
            for i in range(source.size):
                target[i] += source[i]
    filled[0] = 1

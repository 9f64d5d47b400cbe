"""Curves drawn in characters, for a terminal: every curve has a mark of its own, which fills the cells of its line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH_MIN = 24
_TICK_EVERY = 4
"""Rows of cells between two numbers of the vertical axis."""


class Curve(NamedTuple):
    """One curve: a mark, and its points in the order of x, finite."""

    mark: str
    x: Sequence[float]
    y: Sequence[float]


def draw_curves(
    title: str,
    below: str,
    curves: Sequence[Curve],
    width: int,
    height: int,
    *,
    log: bool = False,
    share: bool = False,
    top: float | None = None,
) -> list[str]:
    """Returns lines of at most `width` characters: the title, `height` rows with an axis, numbers, and what is below.

    Args:
        curves: where several meet, the first is shown.
        log: the vertical axis is logarithmic: all values are above 0.
        share: values are from 0 to 1, and numbers are in percent.
        top: the axis goes from 0 to this value at least; None: from the least value to the largest.
    """
    values = [value for curve in curves for value in curve.y]
    lowest, highest = _bounds(values if top is None else [0.0, top, *values], log=log)
    right = max(max(curve.x) for curve in curves) or 1.0

    def shown(value: float) -> str:
        value = 10**value if log else 0.0 if abs(value) < 1e-9 * (highest - lowest) else value
        return f"{value * 100:.1f}%" if share else f"{value:.3g}"

    ticks = {row: shown(highest - (highest - lowest) * row / (height - 1)) for row in range(0, height, _TICK_EVERY)}
    margin = max(map(len, ticks.values()))
    columns = max(width, WIDTH_MIN) - margin - 2
    cells = [[" "] * columns for _ in range(height)]
    for curve in reversed(curves):
        points = [
            (
                round(x / right * (columns - 1)),
                round((highest - (math.log10(y) if log else y)) / (highest - lowest) * (height - 1)),
            )
            for x, y in zip(curve.x, curve.y, strict=True)
        ]
        _fill(cells, points, curve.mark)
    rows = [f"{ticks.get(row, ''):>{margin}} |{''.join(line)}".rstrip() for row, line in enumerate(cells)]
    end = f"{right:.4g}"
    room = columns - len(end)
    numbers = f"{'':{margin}} 0{below[: room - 1]:^{room}}{end}"
    return [f"{'':{margin}}  {title}"[:width], *rows, f"{'':{margin}} +{'-' * columns}", numbers]


def _bounds(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    """Returns the least and the largest value of the axis, which differ; of a logarithmic one, their logarithms."""
    lowest, highest = min(values), max(values)
    if log:
        lowest, highest = math.log10(lowest), math.log10(highest)
    if highest - lowest <= 1e-9 * max(abs(highest), abs(lowest), 1e-300):
        room = abs(highest) * 0.1 or 1.0
        return lowest - room, highest + room
    return lowest, highest


def _fill(cells: list[list[str]], points: Sequence[tuple[int, int]], mark: str) -> None:
    """Marks the cells of points and, between neighbouring points, one cell in each column."""
    before: tuple[int, int] | None = None
    for column, row in points:
        if before is not None:
            for between in range(before[0] + 1, column):
                part = (between - before[0]) / (column - before[0])
                cells[round(before[1] + (row - before[1]) * part)][between] = mark
        cells[row][column] = mark
        before = column, row

"""A figure of a paper, repeated: what is drawn, said and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

LineKind: TypeAlias = Literal["measured", "planned", "seeds", "theory"]
"""Filled points and a line; hollow points and dashes; small points without a line; dots without points."""
ClaimKind: TypeAlias = Literal["cross", "level", "vertical", "range", "read off"]
"""A point that the text has; a height; a place; a range of heights; a point that was read off a picture, in grey."""
Outcome: TypeAlias = Literal["met", "missed", "not settled"]


@dataclass(frozen=True)
class Point:
    """One point.

    Attributes:
        low, high: of its whisker, or of the band; None: it has none.
        beyond: it was not reached: a triangle at the upper edge in place of the point.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    beyond: bool = False


@dataclass(frozen=True)
class Line:
    """Points that belong together.

    Attributes:
        name: in the legend; empty: it is not in it.
        color: lines with the same number have the same color, such as what was measured and planned of one thing.
        is_faint: a variant of the line with the same color: thin, and without points.
        is_band: `low` and `high` are the edges of a band, not whiskers.
    """

    name: str
    kind: LineKind
    points: tuple[Point, ...]
    color: int = 0
    is_band: bool = False
    is_faint: bool = False


@dataclass(frozen=True)
class Claim:
    """What a paper says.

    Attributes:
        text: what the legend says, with the section.
        x, y: of a cross; `y` of a level, `x` of a vertical line.
        y_most: upper end of a range of heights, which begins at `y`.
        points: what was read off a picture.
    """

    kind: ClaimKind
    text: str
    x: float = 0.0
    y: float = 0.0
    y_most: float = 0.0
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        x_logarithmic, y_logarithmic: the axis is.
        ticks: places on the horizontal axis; none: chosen by the picture.
        y_least: where the vertical axis begins, if it is not logarithmic and nothing is negative; None: chosen by the
            picture.
    """

    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    claims: tuple[Claim, ...] = ()
    title: str = ""
    x_logarithmic: bool = False
    y_logarithmic: bool = False
    ticks: tuple[float, ...] = ()
    y_least: float | None = 0.0


@dataclass(frozen=True)
class Judged:
    """A bar: what had to be shown, what was found, and what that means."""

    what: str
    found: str
    outcome: Outcome


@dataclass(frozen=True)
class Table:
    """A table, for people: cells as they are shown."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        panels: side by side; none: the picture is the table.
        sentences: below the picture: what was emulated, quotas, links, network, data, seeds, what differs from the
            paper. Machine, commit and date are added by whoever runs it.
    """

    panels: tuple[Panel, ...]
    bars: tuple[Judged, ...]
    tables: tuple[Table, ...]
    sentences: tuple[str, ...]


def measured(name: str, points: Sequence[Point], color: int = 0) -> Line:
    """Returns a line of measured points."""
    return Line(name, "measured", tuple(points), color)


def planned(name: str, points: Sequence[Point], color: int = 0) -> Line:
    """Returns a line of planned points."""
    return Line(name, "planned", tuple(points), color)

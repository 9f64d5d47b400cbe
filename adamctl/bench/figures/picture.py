"""Draws a figure: measured points filled, planned ones hollow and dashed, the paper's text as crosses; words below."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adamctl.bench.figures.figure import Claim, Figure, Judged, Line, Panel, Point, Table
from adamctl.bench.plot import empty_figure, save_figure
from adamctl.cli.output import table

WIDTH, PANEL_HEIGHT = 10.0, 4.8
"""Inches."""
TITLE_HEIGHT, LEGEND_LINE, WORDS_LINE, MARGIN = 0.33, 0.17, 0.158, 0.1
"""Inches of a line, and below all."""
LETTERS = 170
"""Of a line of words, which fills the width."""
PANELS_MOST = 2
"""Side by side."""
PLAIN_FROM, PLAIN_TO = 0.01, 100_000
"""Numbers at a logarithmic axis that are written out."""
STYLES: Mapping[str, Mapping[str, Any]] = {
    "measured": {"zorder": 3, "marker": "o", "linestyle": "-", "markersize": 6, "linewidth": 1.4},
    "planned": {"marker": "o", "linestyle": "--", "markersize": 5, "linewidth": 1.0, "markerfacecolor": "white"},
    "seeds": {"marker": "o", "linestyle": "", "markersize": 2.5, "alpha": 0.5},
    "theory": {"linestyle": ":", "linewidth": 1.0},
}
FAINT = {"marker": "", "linewidth": 0.8, "alpha": 0.6}
CLAIM, READ_OFF = "black", "0.6"
QUICK = "A TRY OF TINY SIZE: its numbers mean nothing"
MARKS = {"met": "met", "missed": "MISSED", "not settled": "not settled"}


def check() -> None:
    """Raises ConfigurationError: matplotlib is not installed, which should be known before an hour of work."""
    empty_figure(WIDTH, PANEL_HEIGHT)


def draw(figure: Figure, title: str, path: Path, *, is_quick: bool = False) -> None:
    """Writes the picture; its kind is told by the ending.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    rows = [figure.panels[at : at + PANELS_MOST] for at in range(0, len(figure.panels), PANELS_MOST)]
    tables = () if figure.panels else figure.tables
    below = list(words_of(figure))
    heights = [_row_height(row) for row in rows] + [_table_height(one) for one in tables]
    heights = [TITLE_HEIGHT * (1 + is_quick), *heights, WORDS_LINE * len(below) + MARGIN]
    made = empty_figure(WIDTH, sum(heights))
    places = iter(made.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    heading = title + (f"\n{QUICK}" if is_quick else "")
    _write(next(places), heading.splitlines(), top=0.85, fontsize=12, color="firebrick" if is_quick else "black")
    for row in rows:
        place = next(places)
        for axes, panel in zip(place.subplots(1, len(row), squeeze=False)[0], row, strict=True):
            _draw_panel(axes, panel)
    for one in tables:
        _write(next(places), [one.title, *text_of(one).splitlines()], family="monospace", fontsize=8)
    _write(next(places), below, fontsize=7.5)
    save_figure(made, path, str(path))


def words_of(figure: Figure) -> Iterator[str]:
    """Yields the lines below the picture: bars, with what was found, and sentences."""
    for bar in figure.bars:
        yield from _wrapped(said_of_bar(bar))
    if figure.bars:
        yield ""
    for sentence in figure.sentences:
        yield from _wrapped(sentence)


def said_of_bar(bar: Judged) -> str:
    """Returns a bar in words."""
    return f"{MARKS[bar.outcome]}: {bar.what}; found {bar.found}"


def text_of(one: Table) -> str:
    """Returns a table as text; columns of numbers are aligned to the right."""
    right = [n for n in range(len(one.columns)) if one.rows and all(_is_number(row[n]) for row in one.rows)]
    return table(one.columns, one.rows, right=right)


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "-+." or not cell


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, LETTERS, subsequent_indent="    ")


def _write(place: Any, lines: Sequence[str], top: float = 1.0, **style: Any) -> None:
    place.text(0.02, top, "\n".join(lines), verticalalignment="top", horizontalalignment="left", **style)


def _row_height(panels: Sequence[Panel]) -> float:
    """Returns the height of panels side by side, whose legends are below them."""
    return PANEL_HEIGHT + LEGEND_LINE * max(_legend_rows(panel, len(panels)) for panel in panels)


def _table_height(one: Table) -> float:
    return WORDS_LINE * (len(one.rows) + 4)


def _legend_rows(panel: Panel, beside: int) -> int:
    entries = sum(bool(line.name) for line in panel.lines) + len(panel.claims)
    return -(-entries // _legend_columns(beside))


def _legend_columns(beside: int) -> int:
    return 2 if beside == 1 else 1


def _draw_panel(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, fontsize=10)
    axes.grid(alpha=0.3)
    for axis, logarithmic in ((axes.xaxis, panel.x_logarithmic), (axes.yaxis, panel.y_logarithmic)):
        if logarithmic:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(_plain))
            axis.set_minor_formatter(NullFormatter())
    for line in panel.lines:
        _draw_line(axes, line)
    for claim in panel.claims:
        _draw_claim(axes, claim)
    if panel.ticks:
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
    above = all(point.y >= 0 for line in panel.lines for point in line.points)
    if panel.y_least is not None and not panel.y_logarithmic and above:
        axes.set_ylim(bottom=panel.y_least)
    columns = _legend_columns(len(axes.figure.axes))
    anchor = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.11)}
    axes.legend(fontsize=7.5, ncols=columns, frameon=False, **anchor)


def _draw_line(axes: Any, line: Line) -> None:
    color = "0.4" if line.kind == "theory" else f"C{line.color}"
    style = {**STYLES[line.kind], "color": color, **(FAINT if line.is_faint else {})}
    if line.is_band:
        style["marker"] = ""
    reached = [point for point in line.points if not point.beyond]
    xs, ys = [point.x for point in reached], [point.y for point in reached]
    axes.plot(xs, ys, label=line.name or "_nolegend_", **style)
    spread = [point for point in reached if point.low is not None and point.high is not None]
    if line.is_band:
        edges = [[point.low for point in spread], [point.high for point in spread]]
        axes.fill_between([point.x for point in spread], *edges, color=color, alpha=0.15, linewidth=0)
    elif spread:
        axes.errorbar(
            [point.x for point in spread], [point.y for point in spread], yerr=_whiskers(spread), color=color,
            linestyle="", capsize=3, linewidth=1.0,
        )  # fmt: skip
    beyond = [point.x for point in line.points if point.beyond]
    if beyond:
        edge = axes.get_xaxis_transform()
        axes.plot(beyond, [0.97] * len(beyond), marker="^", linestyle="", color=color, transform=edge, clip_on=False)


def _whiskers(points: Sequence[Point]) -> list[list[float]]:
    """Returns how far whiskers go down and up."""
    down = [max(point.y - (point.y if point.low is None else point.low), 0.0) for point in points]
    up = [max((point.y if point.high is None else point.high) - point.y, 0.0) for point in points]
    return [down, up]


def _draw_claim(axes: Any, claim: Claim) -> None:
    if claim.kind == "cross":
        axes.plot(
            [claim.x],
            [claim.y],
            marker="x",
            markersize=9,
            markeredgewidth=2,
            linestyle="",
            color=CLAIM,
            label=claim.text,
        )
    elif claim.kind == "level":
        axes.axhline(claim.y, color=CLAIM, linestyle="-.", linewidth=1.0, label=claim.text)
    elif claim.kind == "vertical":
        axes.axvline(claim.x, color=CLAIM, linestyle="-.", linewidth=1.0, label=claim.text)
    elif claim.kind == "range":
        axes.axhspan(claim.y, claim.y_most, color=CLAIM, alpha=0.08, linewidth=0, label=claim.text)
    else:
        xs, ys = [point.x for point in claim.points], [point.y for point in claim.points]
        axes.plot(xs, ys, marker="s", markersize=5, linestyle="", color=READ_OFF, label=f"{claim.text} (read off)")


def _plain(value: float, position: int | None = None) -> str:
    """Returns a number at a logarithmic axis, written out where it is short."""
    return f"{value:g}" if PLAIN_FROM <= abs(value) <= PLAIN_TO else f"{value:.0e}"

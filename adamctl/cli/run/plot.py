"""`adamctl plot`: what runs measured, side by side: as a picture, or in characters."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo
from adamctl.cli.path_types import Picture

if TYPE_CHECKING:
    from adamctl.launch.run_panels import Panel

RUNS_MAX = 20
FEW = 50
"""Curves of fewer points show each."""
SIDE_BY_SIDE_WIDTH = 100
"""Columns of a terminal from which two panels stand side by side."""
ROWS = 13
"""Of cells in each panel in a terminal."""
_GAP = "   "
_WIDTHS = (6.0, 3.3)
"""Inches: half a picture's width, and the height of a row."""


@click.command("plot")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completing.runs)
@click.option("--output", "-o", type=Picture(), metavar="FILE", help="Write a picture: .svg, .png or .pdf.")
@click.option("--terminal", is_flag=True, help="Draw in characters; without --output this is the default.")
@options.runs_option
def command(runs: tuple[str, ...], output: Path | None, terminal: bool, run_dir: str) -> None:
    """Show what RUNS measured, ended or in progress: losses, metric, rate, staleness and waiting.

    RUN is a run folder, NAME/NNN, NAME for its newest run, or a pattern such as 'digits/*' for all that match; without
    one, the run in progress on this machine or the newest in --run-dir. Several runs are laid over each other. Losses
    and the metric, of classes top-1, are shown over passes, or evaluations of a batch algorithm such as L-BFGS, and
    over seconds of training.
    """
    from adamctl.launch.finding import find_runs
    from adamctl.launch.live_runs import state_folder
    from adamctl.launch.run_curves import read_curves
    from adamctl.launch.run_panels import panels

    folders = find_runs(runs, Path(run_dir), state_folder(os.environ), RUNS_MAX)
    found = panels([read_curves(folder) for folder in folders])
    names = run_names(folders)
    if output is not None:
        draw(found, names, output)
        echo(f"wrote {output}")
    if terminal or output is None:
        for line in in_characters(found, names, shutil.get_terminal_size().columns):
            echo(line)


def run_names(folders: Sequence[Path]) -> list[str]:
    """Returns the ends of the run folders' paths that tell them apart: NAME/NNN, or as much more as it takes."""
    paths = [folder.absolute().parts for folder in folders]
    for parts in range(2, max(map(len, paths)) + 1):
        names = ["/".join(path[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def draw(panels: Sequence[Panel], names: Sequence[str], path: Path) -> None:
    """Draws panels, those of one row side by side.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    from adamctl.bench.plot import empty_figure, save_figure

    rows = sorted({panel.row for panel in panels})
    figure = empty_figure(2 * _WIDTHS[0], _WIDTHS[1] * len(rows))
    grid = figure.add_gridspec(len(rows), 6)  # of panels two or three share a row
    for place, row in enumerate(rows):
        beside = [panel for panel in panels if panel.row == row]
        span = 6 // len(beside)
        left: Any = None
        for number, panel in enumerate(beside):
            shared = left if panel.what == beside[0].what else None
            axes = figure.add_subplot(grid[place, number * span : (number + 1) * span], sharey=shared)
            left = axes if left is None else left
            _panel(axes, panel, len(names))
    _legend(figure, panels, names)
    save_figure(figure, path, f"{path}")


def _panel(axes: Any, panel: Panel, runs: int) -> None:
    from matplotlib.ticker import LogLocator, PercentFormatter, StrMethodFormatter

    for line in panel.lines:
        axes.plot(line.x, line.y, **_style(line.run, runs, held_out=line.held_out, few=len(line.x) < FEW))
    axes.grid(alpha=0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel(panel.over)
    axes.set_ylabel(panel.what)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
    elif panel.top is not None:
        axes.set_ylim(0, max(axes.get_ylim()[1], panel.top))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    if panel.share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _style(run: int, runs: int, *, held_out: bool, few: bool) -> dict[str, Any]:
    """A run has a colour; alone in a picture, its held-out split has one of its own."""
    color = f"C{run}" if runs <= 10 else _color(run)
    if held_out:
        return {"color": "C1" if runs == 1 else color, "marker": "o" if few else "", "markersize": 4, "linestyle": "--"}
    return {"color": color, "marker": "." if few and runs == 1 else "", "linewidth": 1.3}


def _color(run: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab20"](run)


def _legend(figure: Any, panels: Sequence[Panel], names: Sequence[str]) -> None:
    """Says below the picture which run has which colour, and what lines of which kind are of."""
    from matplotlib.lines import Line2D

    labels = dict.fromkeys((line.label, line.held_out) for panel in panels if panel.row < 2 for line in panel.lines)
    grey = {} if len(names) == 1 else {"color": "0.4"}
    kinds = [
        Line2D([], [], label=label, **(_style(0, len(names), held_out=held_out, few=True) | grey))
        for label, held_out in labels
    ]
    if len(names) == 1:
        figure.suptitle(names[0])
        handles = kinds
    else:
        colors = [_style(run, len(names), held_out=False, few=False)["color"] for run in range(len(names))]
        runs = [Line2D([], [], label=name, color=color, linewidth=3) for name, color in zip(names, colors, strict=True)]
        handles = [*runs, *kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))


def in_characters(panels: Sequence[Panel], names: Sequence[str], width: int) -> list[str]:
    """Returns lines of at most `width` characters; of one run a dot is a mark, of several each has a letter."""
    columns = 2 if width >= SIDE_BY_SIDE_WIDTH else 1
    each = (width - len(_GAP) * (columns - 1)) // columns
    lines: list[str] = []
    for row in sorted({panel.row for panel in panels}):
        beside = [panel for panel in panels if panel.row == row]
        for first in range(0, len(beside), columns):
            drawn = [_drawn(panel, len(names), each) for panel in beside[first : first + columns]]
            lines += [
                _GAP.join(part.ljust(each) for part in parts).rstrip() for parts in zip_longest(*drawn, fillvalue="")
            ]
            lines.append("")
    return [*lines, *_marks(panels, names)]


def _drawn(panel: Panel, runs: int, width: int) -> list[str]:
    from adamctl.live.characters import Curve, draw_curves

    held_out_first = sorted(panel.lines, key=lambda line: not line.held_out)
    curves = [Curve(_mark(line.run, runs, held_out=line.held_out), line.x, line.y) for line in held_out_first]
    return draw_curves(panel.what, panel.over, curves, width, ROWS, log=panel.log, share=panel.share, top=panel.top)


def _mark(run: int, runs: int, *, held_out: bool) -> str:
    if runs == 1:
        return "o" if held_out else "."
    return chr(ord("A" if held_out else "a") + run)


def _marks(panels: Sequence[Panel], names: Sequence[str]) -> list[str]:
    """Returns what each mark stands for."""
    labels: dict[tuple[int, bool], list[str]] = {}
    for panel in panels:
        for line in panel.lines if panel.row == 0 else ():
            known = labels.setdefault((line.run, line.held_out), [])
            known += [line.label] if line.label not in known else []
    return [
        f"{_mark(run, len(names), held_out=held_out)}  {names[run]}: {', '.join(found)}"
        for (run, held_out), found in sorted(labels.items())
    ]

"""`adamctl run plot`: a picture of a run's losses, over passes or evaluations and over seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import options
from adamctl.cli.output import echo

if TYPE_CHECKING:
    from adamctl.launch.run_curves import Curves, Point

LOG_FROM = 10.0
"""Largest loss over the smallest from which the axis is logarithmic."""

FEW = 100
"""Curves of fewer points show each."""


@click.command("plot")
@click.argument("run")
@click.argument("picture", metavar="FILE", type=options.Picture())
@options.runs_option
def command(run: str, picture: Path, run_dir: str) -> None:
    """Write a picture of the losses of RUN to FILE: .svg, .png or .pdf.

    RUN is a run folder, NAME/NNN, or NAME for its newest run, in progress or not. The loss on training data and on the
    held-out split is shown over passes and over seconds of training; of a batch algorithm such as L-BFGS, at every
    commit, over evaluations of the whole batch.
    """
    from adamctl.launch.finding import find_any_run
    from adamctl.launch.live_runs import state_folder
    from adamctl.launch.run_curves import read_curves

    folder = find_any_run(run, Path(run_dir), state_folder(os.environ))
    draw(read_curves(folder), "/".join(folder.absolute().parts[-2:]), picture)
    echo(f"wrote {picture}")


def draw(curves: Curves, name: str, path: Path) -> None:
    """Draws the curves of a run.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    from adamctl.bench.plot import new_figure, save_figure

    figure, (over_passes, over_seconds) = new_figure(width=11, columns=2)
    counted = "evaluations of the whole batch" if curves.algorithm else "passes over the training data"
    training = "training, with the L2 term" if curves.algorithm else "training"
    for axes, label, place in ((over_passes, counted, 0), (over_seconds, "seconds of training", 1)):
        _line(axes, curves.training, place, label=training, marker="." if len(curves.training) < FEW else "")
        _line(axes, curves.held_out, place, label=curves.split, marker="o")
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        if _spans(curves):
            axes.set_yscale("log")
    over_passes.set_ylabel("loss")
    over_passes.legend()
    figure.suptitle(f"{name}: {curves.algorithm}" if curves.algorithm else name)
    save_figure(figure, path, f"{path}")


def _line(axes: Any, points: Sequence[Point], place: int, **style: str) -> None:
    if points:
        axes.plot([point[place] for point in points], [point.loss for point in points], **style)


def _spans(curves: Curves) -> bool:
    """Whether losses are all above 0, and far apart."""
    losses = [point.loss for point in (*curves.training, *curves.held_out)]
    return min(losses) > 0 and max(losses) >= LOG_FROM * min(losses)

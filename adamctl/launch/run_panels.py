"""What a picture of runs shows: panels, each with the lines of all runs, whatever they are drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adamctl.launch.run_curves import Curves, Point
from adamctl.model.metric import TOP_1

LOG_FROM = 10.0
"""Largest loss over the smallest from which the axis is logarithmic."""

PASSES = "passes over the training data"
EVALUATIONS = "evaluations of the whole batch"
BOTH = "passes; evaluations of a batch algorithm"
SECONDS = "seconds of training"


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        run: the place of its run in the picture, from 0.
        label: what it is of; all lines of a panel with one label look alike, but for the run's colour.
        held_out: measured now and then on a split, rather than all the time.
    """

    run: int
    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    held_out: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        row: panels of one row stand side by side and share what is measured.
        share: values are from 0 to 1, for people in percent.
        log: the vertical axis is logarithmic.
        top: the axis goes from 0 to this value at least; None: from the least value to the largest.
    """

    row: int
    what: str
    over: str
    lines: tuple[Line, ...]
    share: bool = False
    log: bool = False
    top: float | None = None


def panels(runs: Sequence[Curves]) -> list[Panel]:
    """Returns the panels that have any line: loss and metric over passes and seconds; rate, staleness and waiting."""
    counted = _counted(runs)
    found: list[Panel] = []
    for over, place in ((counted, 0), (SECONDS, 1)):
        found.append(Panel(0, "loss", over, _losses(runs, place), log=_spans(runs)))
    metrics = list(dict.fromkeys(curves.metric for curves in runs))
    for row, metric in enumerate(metrics, 1):
        of_metric = [(curves.metric_values if curves.metric == metric else [], curves.split) for curves in runs]
        for over, place in ((counted, 0), (SECONDS, 1)):
            lines = _lines(of_metric, place, held_out=True)
            found.append(Panel(row, metric, over, lines, share=metric == TOP_1.name))
    last = len(metrics) + 1
    rates = _lines([(curves.rate, "mean so far") for curves in runs], 1)
    found.append(Panel(last, "training examples per second", SECONDS, rates, top=0.0))
    stale = _lines([(curves.staleness, "median") for curves in runs], 1)
    found.append(Panel(last, "staleness, pushes of others", SECONDS, stale, top=1.0))
    waits = _lines([(curves.waiting_share, "waiting for data") for curves in runs], 1)
    found.append(Panel(last, "share of time waiting for data", SECONDS, waits, share=True, top=0.1))
    return [panel for panel in found if panel.lines]


def _counted(runs: Sequence[Curves]) -> str:
    kinds = {bool(curves.algorithm) for curves in runs}
    return BOTH if len(kinds) > 1 else EVALUATIONS if kinds == {True} else PASSES


def _losses(runs: Sequence[Curves], place: int) -> tuple[Line, ...]:
    training = [
        (curves.training, "training, with the L2 term" if curves.algorithm else "training") for curves in runs
    ]  # fmt: skip
    held_out = [(curves.held_out, curves.split) for curves in runs]
    return (*_lines(training, place), *_lines(held_out, place, held_out=True))


def _lines(
    curves: Sequence[tuple[Sequence[Point], str]], place: int, *, held_out: bool = False
) -> tuple[Line, ...]:  # fmt: skip
    """Returns a line of each run that has points; `place` is that of the horizontal value in a point."""
    return tuple(
        Line(run, label, tuple(point[place] for point in points), tuple(point.value for point in points), held_out)
        for run, (points, label) in enumerate(curves)
        if points
    )


def _spans(runs: Sequence[Curves]) -> bool:
    """Whether losses are all above 0, and far apart."""
    losses = [point.value for curves in runs for point in (*curves.training, *curves.held_out)]
    return min(losses) > 0 and max(losses) >= LOG_FROM * min(losses)

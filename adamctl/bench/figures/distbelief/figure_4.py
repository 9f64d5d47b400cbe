"""DistBelief figure 4: accuracy over time, of plain SGD, Downpour, Downpour with Adagrad and L-BFGS (section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor

from adamctl.bench.figures.curves import band
from adamctl.bench.figures.distbelief.speech_methods import (
    ADAGRAD,
    ADAGRAD_8,
    DOWNPOUR,
    EVALUATE_EVERY,
    LBFGS_8,
    METHODS,
    SGD,
    TARGET,
    Method,
)
from adamctl.bench.figures.distbelief.speech_runs import Found, runs_of, speech_runs, what_was_emulated
from adamctl.bench.figures.figure import Claim, Figure, Judged, Line, Panel, Table
from adamctl.bench.figures.judging import above, mean_of
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import Session

SEEDS = (1, 2, 3)
REPLICAS_THERE = {SGD: "1 of 8 partitions", DOWNPOUR: "20", ADAGRAD: "20", ADAGRAD_8: "200", LBFGS_8: "2,000"}
"""In the paper."""
ORDER = (
    (SGD, DOWNPOUR),
    (DOWNPOUR, ADAGRAD),
    (ADAGRAD, ADAGRAD_8),
    (ADAGRAD, LBFGS_8),
    (LBFGS_8, ADAGRAD_8),
)
"""The first of each two needs longer, as the paper has it."""
ERRORS = 1.0
"""A ratio is not settled while its standard error reaches 1."""


LEVEL = (Claim("level", f"{TARGET:g}: what methods are compared by", y=TARGET),)


def measure(session: Session) -> None:
    """Takes all runs that are not there: methods alternate within a seed."""
    with speech_runs(session) as runs:
        methods = runs.methods(METHODS)
        for seed in session.sized(SEEDS, SEEDS[:1]):
            for method in methods:
                runs.take(method, seed, EVALUATE_EVERY[method.algorithm][0])


def figure_of(rounds: Rounds) -> Figure:
    """Returns the figure of its runs."""
    found = {method: runs_of(rounds, method) for method in METHODS}
    panels = tuple(
        Panel(
            "seconds of training", "top-1 of frames", lines, title=title, claims=LEVEL,
            y_least=_below(point.low for line in lines for point in line.points if point.low is not None),
        )
        for title, on_test in (("training batches", False), ("test part", True))
        if (lines := _lines(found, on_test))
    )  # fmt: skip
    return Figure(panels, tuple(_judged(found, *two) for two in ORDER), (_table(found),), _sentences(found, rounds))


def _below(values: Iterable[float]) -> float:
    """Returns a twentieth below all."""
    return max(floor(20 * min(values)) / 20, 0.0)


def _lines(found: Mapping[Method, Sequence[Found]], on_test: bool) -> tuple[Line, ...]:
    lines = []
    for color, (method, runs) in enumerate(found.items()):
        points = band([run.curve.tested if on_test else run.curve.trained for run in runs])
        if points:  # L-BFGS does not tell its accuracy on training batches
            lines.append(Line(method.title, "measured", points, color, is_band=True))
    return tuple(lines)


def _judged(found: Mapping[Method, Sequence[Found]], slow: Method, fast: Method) -> Judged:
    """Judges whether one method takes longer than another, seed by seed."""
    pairs = zip(found[slow], found[fast], strict=True)
    ratios = [one.curve.seconds_or_limit(TARGET) / other.curve.seconds_or_limit(TARGET) for one, other in pairs]
    return above(f"time to {TARGET:g}, {slow.title} / {fast.title}", mean_of(ratios), 1.0, ERRORS)


def _table(found: Mapping[Method, Sequence[Found]]) -> Table:
    rows = []
    for method, runs in found.items():
        times = mean_of([run.curve.seconds_or_limit(TARGET) for run in runs])
        last = mean_of([run.curve.tested[-1].top1 if run.curve.tested else 0.0 for run in runs])
        missed = sum(run.curve.seconds_to(TARGET) is None for run in runs)
        ages = [run.gradient_age for run in runs if run.gradient_age is not None]
        rows.append((
            method.title, REPLICAS_THERE[method], f"{method.cores:.2f}",
            "-" if runs[0].rate is None else f"{runs[0].rate:g}",
            f"{times.value:.0f} ({times.low:.0f} to {times.high:.0f})" + (f", {missed} never" if missed else ""),
            f"{last.value:.4f} ({last.low:.4f} to {last.high:.4f})",
            f"{mean_of([run.examples_per_s for run in runs]).value:,.0f}",
            str(max(ages)) if ages else "-",
        ))  # fmt: skip
    columns = (
        "method", "replicas there", "cores", "rate", f"seconds to {TARGET:g}", "last top-1", "frames/s",
        "age of gradients",
    )  # fmt: skip
    return Table(columns, tuple(rows))


def _sentences(found: Mapping[Method, Sequence[Found]], rounds: Rounds) -> tuple[str, ...]:
    seeds = len(next(iter(found.values())))
    never = [
        f"{method.title}, seed {seed} ({run.curve.ended})"
        for method, runs in found.items()
        for seed, run in enumerate(runs, 1)
        if run.curve.seconds_to(TARGET) is None
    ]
    return (
        *what_was_emulated(rounds),
        f"Lines: mean of {seeds} seed(s); bands from the smallest to the largest. A ratio is of two runs with the same "
        "seed; it is not settled while its standard error reaches 1. Between two evaluations accuracy is taken to grow "
        "evenly.",
        *((f"Never at {TARGET:g}, and counted with their whole time: {', '.join(never)}.",) if never else ()),
        "L-BFGS does not tell its accuracy on training batches, so it is only on the right.",
        "The paper: SGD slowest; Downpour with 20 replicas much faster; Adagrad with 20 a little faster yet; L-BFGS "
        "with 2,000 faster; Adagrad with 200 fastest (5, figure 4). 8 replicas stand for 200 and for 2,000 here, and "
        "what the asynchrony of 200 does cannot be seen. There is no GPU.",
    )

"""DistBelief figure 5: time to an accuracy over machines and cores, of Downpour with and without Adagrad and L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from adamctl.bench.figures.distbelief.speech_methods import (
    ADAGRAD,
    DOWNPOUR,
    EVALUATE_EVERY,
    LBFGS_8,
    SERVER_CORES,
    TARGET,
    Method,
    at_replicas,
)
from adamctl.bench.figures.distbelief.speech_planned import (
    BEYOND,
    REPLICAS_PER_SERVER,
    planned_frames_per_s,
    take_rates,
)
from adamctl.bench.figures.distbelief.speech_runs import Found, runs_of, speech_runs, what_was_emulated
from adamctl.bench.figures.figure import Figure, Judged, Line, Panel, Point, Table, measured, planned
from adamctl.bench.figures.judging import judged, mean_of, near
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import Session

SEEDS = (1, 2)
REPLICAS, REPLICAS_QUICK = (1, 2, 4, 8), (4, 8)
LBFGS = at_replicas(LBFGS_8, 4)
FAMILIES: Mapping[str, Method] = {
    "Downpour": DOWNPOUR, "Downpour with Adagrad": ADAGRAD, "Sandblaster L-BFGS": LBFGS,
}  # fmt: skip
"""With the rates of 4 replicas, which are kept for the others, as a user would."""
FIGURE_4 = "distbelief-4"
"""Whose runs are used again, where there are any."""
WITHIN = 0.2
"""Of the plan."""
PLANNED = "Downpour with Adagrad, planned"
Runs = Mapping[str, Mapping[int, Sequence[Found]]]
"""By family and number of replicas."""


def measure(session: Session) -> None:
    """Takes all runs that are not there, or in figure 4: settings alternate within a seed."""
    before = session.others(FIGURE_4)
    take_rates(session)
    with speech_runs(session) as runs:
        families = runs.methods(tuple(FAMILIES.values()))
        for seed in session.sized(SEEDS, SEEDS[:1]):
            for replicas in session.sized(REPLICAS, REPLICAS_QUICK):
                for family in families:
                    method = at_replicas(family, replicas)
                    key = f"{method.name}/seed-{seed}"
                    if key in before and before[key]["rate"] == method.rate:
                        session.rounds.take(key, partial(before.__getitem__, key))
                    runs.take(method, seed, EVALUATE_EVERY[method.algorithm][1], TARGET)


def figure_of(rounds: Rounds) -> Figure:
    """Returns the figure of its runs."""
    found = {
        name: {
            replicas: runs_of(rounds, at_replicas(family, replicas))
            for replicas in REPLICAS
            if replicas in REPLICAS_QUICK or rounds.under(at_replicas(family, replicas).name)
        }
        for name, family in FAMILIES.items()
    }
    seconds = f"seconds of training to {TARGET:g} of frames"
    panels = (
        Panel("machines: replicas and the server", seconds, _lines(found, lambda method: method.replicas + 1)),
        Panel("cores: all quotas together", seconds, _lines(found, lambda method: method.cores)),
    )
    plan = {replicas: planned_frames_per_s(rounds, replicas) for replicas in (*REPLICAS, *BEYOND)}
    speeds = _speeds(found)
    ratios = [point.y / plan[int(point.x)] for point in speeds[1].points]
    bars = (
        _least_time(found), _fixed_rate(found["Downpour"]), _gains_most(found),
        near("frames per second of Downpour with Adagrad, measured over planned", ratios, WITHIN),
    )  # fmt: skip
    beyond = planned(PLANNED, [Point(replicas, speed) for replicas, speed in plan.items()], color=1)
    speed = Panel(
        "replicas", "frames per second", (*speeds, beyond), x_logarithmic=True, y_logarithmic=True,
        ticks=(*REPLICAS, *BEYOND),
    )  # fmt: skip
    return Figure((*panels, speed), bars, (_table(found),), _sentences(found, rounds))


def seconds_of(runs: Sequence[Found]) -> float:
    """Returns the mean time to the target; a run that did not get there counts with its whole time."""
    return mean_of([run.curve.seconds_or_limit(TARGET) for run in runs]).value


def _lines(found: Runs, place: Callable[[Method], float]) -> tuple[Line, ...]:
    lines = []
    for color, (name, by_replicas) in enumerate(found.items()):
        points = []
        for replicas, runs in by_replicas.items():
            times = mean_of([run.curve.seconds_or_limit(TARGET) for run in runs])
            x = place(at_replicas(FAMILIES[name], replicas))
            beyond = any(run.curve.seconds_to(TARGET) is None for run in runs)
            points.append(Point(x, times.value, times.low, times.high, beyond))
        lines.append(Line(name, "measured", tuple(points), color))
    return tuple(lines)


def _speeds(found: Runs) -> tuple[Line, ...]:
    """Returns frames per second over replicas, of Downpour without and with Adagrad."""
    lines = []
    for color, name in enumerate(("Downpour", "Downpour with Adagrad")):
        points = [
            Point(replicas, speed.value, speed.low, speed.high)
            for replicas, runs in found[name].items()
            for speed in (mean_of([run.examples_per_s for run in runs]),)
        ]
        lines.append(measured(name, points, color))
    return tuple(lines)


# --- what had to be shown ---------------------------------------------------------------------------------------------


def _least_time(found: Runs) -> Judged:
    """For each number of machines Adagrad needs the least time."""
    adagrad = found["Downpour with Adagrad"]
    first = {replicas: _first(found, replicas) for replicas in adagrad}
    others = [f"{name} with {replicas}" for replicas, name in first.items() if found.get(name) is not adagrad]
    text = "all" if not others else f"the least has {', '.join(others)}"
    return judged("Adagrad needs the least time with any number of replicas", text, not others)


def _first(found: Runs, replicas: int) -> str:
    """Returns which method needs the least time; `nobody` where none got there."""
    name = min(found, key=lambda name: seconds_of(found[name][replicas]))
    reached = [run.curve.seconds_to(TARGET) for run in found[name][replicas]]
    return "nobody" if all(one is None for one in reached) else name


def _fixed_rate(downpour: Mapping[int, Sequence[Found]]) -> Judged:
    """A fixed rate misses the target with 8 replicas, or is slower with them than with 4."""
    four_s, eight_s = seconds_of(downpour[4]), seconds_of(downpour[8])
    missed = sum(run.curve.seconds_to(TARGET) is None for run in downpour[8])
    text = f"{eight_s:.0f} s with 8, {four_s:.0f} s with 4, {missed} of {len(downpour[8])} missed it with 8"
    what = "a fixed rate misses the target with 8 replicas, or is slower than with 4"
    return judged(what, text, bool(missed) or eight_s > four_s)


def _gains_most(found: Runs) -> Judged:
    """L-BFGS gains most from 4 to 8 replicas."""
    gains = {name: seconds_of(runs[4]) / seconds_of(runs[8]) for name, runs in found.items()}
    text = ", ".join(f"{name} {gain:.2f} times" for name, gain in gains.items())
    best = max(gains, key=lambda name: gains[name])
    return judged("L-BFGS gains most from 4 to 8 replicas", text, best == "Sandblaster L-BFGS")


# --- in words ---------------------------------------------------------------------------------------------------------


def _table(found: Runs) -> Table:
    rows = []
    for name, by_replicas in found.items():
        for replicas, runs in by_replicas.items():
            method = at_replicas(FAMILIES[name], replicas)
            times = [run.curve.seconds_to(TARGET) for run in runs]
            rows.append((
                name, str(replicas), str(replicas + 1), f"{method.cores:.2f}",
                "-" if runs[0].rate is None else f"{runs[0].rate:g}",
                ", ".join("never" if one is None else f"{one:.0f}" for one in times),
                f"{mean_of([run.examples_per_s for run in runs]).value:,.0f}",
            ))  # fmt: skip
    columns = ("method", "replicas", "machines", "cores", "rate", f"seconds to {TARGET:g}, by seed", "frames/s")
    return Table(columns, tuple(rows))


def _sentences(found: Runs, rounds: Rounds) -> tuple[str, ...]:
    seeds = max(len(runs) for by_replicas in found.values() for runs in by_replicas.values())
    return (
        *what_was_emulated(rounds),
        f"Points: mean of {seeds} seed(s), with the smallest and the largest; a triangle: a run did not get there in "
        "its time, which counts as a whole. Rates are those of 4 replicas.",
        f"Planned: from rates that this run measured; machines as here, a server of {SERVER_CORES:g} core for every "
        f"{REPLICAS_PER_SERVER} replicas; frames per second alone, since no planner knows accuracy.",
        "The paper: time to 16% on the test set; Downpour with Adagrad best for any number of machines or cores, a "
        "fixed rate often misses the target, L-BFGS scales best with cores (5, figure 5). Adagrad is clearly best up "
        "to 2,000 cores, and L-BFGS may win with 30,000 (6): the scale here is another.",
    )

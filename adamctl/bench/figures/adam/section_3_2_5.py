"""Adam 3.2.5: what it saves to end a pass when 75% of it is done, with one slow worker, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from statistics import median
from typing import Any

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.figures.figure import Claim, Figure, Judged, Line, Panel, Table, measured
from adamctl.bench.figures.judging import Mean, above, mean_of, near, paired
from adamctl.bench.figures.machines import BESIDE_CORES, core_shares
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import Training, example, train
from adamctl.bench.figures.session import Session

EXAMPLE = "mnist.toml"
EXAMPLES = 60_000
FAST_CORES, SLOW_CORES, EVEN_CORES, SERVER_CORES = 0.4, 0.1, 0.325, 0.2
"""Of a worker, of the slow one, of each where all are alike; of the parameter server."""
MACHINES: Mapping[str, tuple[float, ...]] = {
    "slow": (FAST_CORES, FAST_CORES, FAST_CORES, SLOW_CORES), "even": (EVEN_CORES,) * 4,
}  # fmt: skip
SEEDS: Mapping[str, tuple[int, ...]] = {"slow": tuple(range(1, 11)), "even": (1, 2, 3)}
PASSES, PASSES_QUICK = 8, 3
FRACTION, WHOLE = 0.75, 1.0
RANGES = (8, 58)
"""Batches: the default, and the most that a pass of four workers has, nearer to the fixed shares of the paper."""
ALONE_PASSES: Mapping[float, int] = {FAST_CORES: 3, EVEN_CORES: 3, SLOW_CORES: 1}
THERE = 0.8
"""Up to 20% are saved (3.2.5)."""
NEAR = 0.05
"""Free workers take what is left, so a slow one delays a pass by little where ranges are short."""
COST_MOST = 0.001
"""Of top-1: ten test images."""
TITLES: Mapping[str, str] = {"slow": "one slow worker", "even": "four alike"}


def measure(session: Session) -> None:
    """Takes all runs that are not there: settings alternate within a seed."""
    with core_shares() as groups:
        for cores in ALONE_PASSES:
            session.take(f"alone/{cores:g}", partial(_alone, session, groups, cores))
        for which, seed in _turns(session):
            for batches, fraction in product(RANGES, (FRACTION, WHOLE)):
                key = f"{which}/{batches}/{fraction}/seed-{seed}"
                session.take(key, partial(_run, session, groups, MACHINES[which], seed, batches, fraction))


def _turns(session: Session) -> Iterator[tuple[str, int]]:
    for which, seeds in SEEDS.items():
        for seed in session.sized(seeds, seeds[:1]):
            yield which, seed


def _run(
    session: Session, groups: ControlGroups, workers: Sequence[float], seed: int, batches: int, fraction: float
) -> dict[str, Any]:
    """Trains, and returns seconds of each pass after the first, and the last top-1."""
    found = _train(
        session, groups, workers, seed,
        {
            "train.passes": session.sized(PASSES, PASSES_QUICK), "train.pass_fraction": fraction,
            "train.range_batches": batches, "train.evaluate_every": 1,
        },
    )  # fmt: skip
    return {"pass_s": pass_seconds(found["evaluations"]), "top1": found["result"]["test_top1"]}


def _alone(session: Session, groups: ControlGroups, cores: float) -> dict[str, Any]:
    """Returns how fast a worker alone is."""
    passes = session.sized(ALONE_PASSES[cores], 1)
    found = _train(session, groups, (cores,), 1, {"train.passes": passes, "train.evaluate_every": passes})
    return {"examples_per_s": found["result"]["images_per_s"]}


def _train(
    session: Session, groups: ControlGroups, workers: Sequence[float], seed: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    machines = {f"worker-{number}": cores for number, cores in enumerate(workers, 1)} | {"ps-1": SERVER_CORES}
    keys = {
        "cluster.workers": len(workers), "cluster.threads": 1, "cluster.apply_threads": 1, "cluster.store": "none",
        "train.checkpoint_every": 0, **settings,
    }  # fmt: skip
    return train(Training(example(EXAMPLE), keys, seed, machines, data=session.settings.data), groups)


def pass_seconds(evaluations: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the time of training of each pass after the first: an evaluation begins when a pass has ended."""
    ends = [one["train_seconds"] for one in evaluations]
    return [round(after - before, 4) for before, after in pairwise(ends)]


# --- the figure -------------------------------------------------------------------------------------------------------


def figure_of(rounds: Rounds) -> Figure:
    """Returns the figure of its runs."""
    panels = (
        Panel(
            "batches in a range", "time of a pass, 0.75 / 1.0", _lines(rounds, ratios),
            (Claim("level", "up to 20% are saved (3.2.5)", y=THERE),), ticks=RANGES,
        ),
        Panel("batches in a range", "top-1, 0.75 less 1.0", _lines(rounds, differences), ticks=RANGES),
    )  # fmt: skip
    return Figure(panels, _bars(rounds), (_table(rounds),), _sentences(rounds))


def ratios(rounds: Rounds, which: str, batches: int) -> Mean:
    """Returns the time of a pass with 0.75 over that with 1.0, seed by seed."""
    parts, wholes = (_pass_s(rounds, which, batches, fraction) for fraction in (FRACTION, WHOLE))
    return mean_of([part / whole for part, whole in zip(parts, wholes, strict=True)])


def differences(rounds: Rounds, which: str, batches: int) -> Mean:
    """Returns the last top-1 with 0.75 less that with 1.0, seed by seed."""
    parts, wholes = (_top1(rounds, which, batches, fraction) for fraction in (FRACTION, WHOLE))
    return paired(parts, wholes)


def together_s(rounds: Rounds, which: str) -> float:
    """Returns the time of a pass of workers whose speeds, each measured alone, add up."""
    speeds: list[float] = [rounds[f"alone/{cores:g}"]["examples_per_s"] for cores in MACHINES[which]]
    return EXAMPLES / sum(speeds)


def _of(rounds: Rounds, which: str, batches: int, fraction: float) -> list[dict[str, Any]]:
    """Returns the runs of a setting, by seed. Raises MissingRoundError: there are none."""
    return rounds.all_of(f"{which}/{batches}/{fraction}", "seed-1")


def _pass_s(rounds: Rounds, which: str, batches: int, fraction: float) -> list[float]:
    return [median(one["pass_s"]) for one in _of(rounds, which, batches, fraction)]


def _top1(rounds: Rounds, which: str, batches: int, fraction: float) -> list[float]:
    return [one["top1"] for one in _of(rounds, which, batches, fraction)]


def _lines(rounds: Rounds, compared: Callable[[Rounds, str, int], Mean]) -> tuple[Line, ...]:
    return tuple(
        measured(title, [compared(rounds, which, batches).point(batches) for batches in RANGES], color)
        for color, (which, title) in enumerate(TITLES.items())
    )


def _bars(rounds: Rounds) -> tuple[Judged, ...]:
    short, long = RANGES
    saved = mean_of(
        [
            whole / part
            for part, whole in zip(*(_pass_s(rounds, "slow", long, one) for one in (FRACTION, WHOLE)), strict=True)
        ]
    )
    return (
        above(f"ranges of {long} batches: time of a pass with 1.0 over that with 0.75", saved, 1.0),
        near(f"ranges of {short} batches: time of a pass with 0.75 over that with 1.0",
             [ratios(rounds, "slow", short).value], NEAR),
        *(
            above(f"ranges of {batches} batches: top-1 with 0.75 less that with 1.0",
                  differences(rounds, "slow", batches), -COST_MOST)
            for batches in RANGES
        ),
    )  # fmt: skip


def _table(rounds: Rounds) -> Table:
    rows = []
    for which, batches, fraction in product(TITLES, RANGES, (WHOLE, FRACTION)):
        times, top1 = (mean_of(of(rounds, which, batches, fraction)) for of in (_pass_s, _top1))
        added_s = together_s(rounds, which)
        rows.append((
            TITLES[which], str(batches), str(fraction), f"{times.value:.2f} ({times.low:.2f} to {times.high:.2f})",
            f"{added_s:.2f}", f"{times.value / added_s:.2f}", f"{top1.value:.4f} ({top1.low:.4f} to {top1.high:.4f})",
        ))  # fmt: skip
    columns = (
        "workers",
        "batches in a range",
        "pass_fraction",
        "seconds of a pass",
        "speeds added up",
        "over that",
        "last top-1",
    )
    return Table(columns, tuple(rows))


def _sentences(rounds: Rounds) -> tuple[str, ...]:
    shares = ", ".join(f"{cores:g}" for cores in MACHINES["slow"])
    counts = " and ".join(f"{len(_of(rounds, which, RANGES[0], WHOLE))} ({TITLES[which]})" for which in TITLES)
    passes = 1 + len(_of(rounds, "slow", RANGES[0], WHOLE)[0]["pass_s"])
    short, long = (ratios(rounds, "slow", batches) for batches in RANGES)
    stealing = mean_of(_pass_s(rounds, "slow", RANGES[0], WHOLE)).value / together_s(rounds, "slow")
    return (
        f"Machines: four workers of one thread with {shares} core, or with {EVEN_CORES:g} each; a parameter server "
        f"with {SERVER_CORES:g}; data server, coordinator and controller share {BESIDE_CORES:g}. TCP on loopback, "
        "links without a limit.",
        f"MNIST, the network of 4.3.3 as in examples/{EXAMPLE}, {passes} passes, seeds: {counts}. A time is the median "
        "of passes after the first; whiskers are one standard error of ratios and differences seed by seed.",
        f"With one slow worker a pass with {FRACTION} takes {short.value:.3f} of one with {WHOLE} where ranges "
        f"have {RANGES[0]} batches, and {long.value:.3f} where they have {RANGES[1]}. The paper saves up to 20%, with "
        "fixed shares of the images.",
        "Here nothing is skipped: what is out when a pass ends is finished and counts, and free workers take what is "
        f"left. That is the stealing of work which the paper did not build: with ranges of {RANGES[0]} batches and "
        f"{WHOLE} a pass takes {stealing:.2f} of what the four speeds, each measured alone, would need together.",
    )

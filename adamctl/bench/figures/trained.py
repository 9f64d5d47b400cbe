"""Trainings of which only accuracy counts: taken as rounds, and what seeds come to (Adam 4.3.3 and 4.4.3).

The last evaluation of a run counts, never its best one, which would be chosen on test images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import Training, train_several
from adamctl.bench.figures.session import Session

SEED = "seed-"
PERCENT = 100.0


def take_trainings(session: Session, trainings: Mapping[str, Training], at_a_time: int = 1) -> None:
    """Takes rounds by key: trains those that are not there, so many at a time, and keeps each as it ends.

    Raises:
        RunFailedError: a run fails; what has ended is kept.
    """
    missing = {key: training for key, training in trainings.items() if key not in session.rounds}

    def ended(key: str, found: Mapping[str, Any]) -> None:
        session.take(key, lambda: kept_of(found))

    if missing:
        session.begin()
        session.progress(f"trains {', '.join(missing)}: {at_a_time} at a time; told when one has ended")
        train_several(missing, at_a_time, ended)


def kept_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is kept of a training: what it printed, and its evaluations."""
    evaluations = [{key: one[key] for key in ("pass", "top1", "loss")} for one in found["evaluations"]]
    return {"result": found["result"], "evaluations": evaluations}


def key_of_seed(setting: str, seed: int) -> str:
    return f"{setting}/{SEED}{seed}"


def seeds_of(rounds: Rounds, settings: Sequence[str], seeds: Sequence[int]) -> tuple[int, ...]:
    """Returns the seeds with which all of several settings were trained, so that they can be compared."""
    return tuple(seed for seed in seeds if all(key_of_seed(setting, seed) in rounds for setting in settings))


def compared_seeds(rounds: Rounds, settings: Sequence[str], seeds: Sequence[int]) -> tuple[int, ...]:
    """Likewise. Raises MissingRoundError: there are none."""
    found = seeds_of(rounds, settings, seeds)
    if not found:
        for setting in settings:
            rounds[key_of_seed(setting, seeds[0])]
    return found


def last_percents(rounds: Rounds, setting: str, seeds: Sequence[int]) -> list[float]:
    """Returns the top-1 of the last evaluation with each seed, in percent."""
    return [PERCENT * rounds[key_of_seed(setting, seed)]["result"]["test_top1"] for seed in seeds]


def of_results(rounds: Rounds, setting: str, seeds: Sequence[int], name: str) -> list[Any]:
    """Returns a field of what each run printed."""
    return [rounds[key_of_seed(setting, seed)]["result"][name] for seed in seeds]

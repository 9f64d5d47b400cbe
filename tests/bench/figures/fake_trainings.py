"""Trainings that do not run: for tests of figures of which only accuracy counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import Training

TopOne = Callable[[str, Training], float]


class FakeTrainings:
    """In place of `train_several`. `ran`: what was asked for, by key; `at_a_time`: how many at most, of each call."""

    def __init__(self, top1: TopOne) -> None:
        self._top1 = top1
        self.ran: dict[str, Training] = {}
        self.at_a_time: list[int] = []

    def __call__(
        self, trainings: Mapping[str, Training], at_a_time: int, ended: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        self.at_a_time.append(at_a_time)
        for key, training in trainings.items():
            self.ran[key] = training
            ended(key, found_of(self._top1(key, training)))


def found_of(top1: float) -> dict[str, Any]:
    """Returns what `train` returns of a run that ended with so much, and was better before."""
    result = {"test_top1": top1, "top1": top1, "best_test_top1": top1 + 0.001, "train_seconds": 60.0}
    result["gradient_age_p50"] = 2
    evaluation = {"kind": "evaluation", "pass": 1.0, "top1": top1, "loss": 0.1, "time": 1.0}
    return {"result": result, "evaluations": [evaluation], "progress": []}


def keep(rounds: Rounds, key: str, value: Any) -> None:
    """Adds a finished round."""
    rounds.take(key, lambda: value)

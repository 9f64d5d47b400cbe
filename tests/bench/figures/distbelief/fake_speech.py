"""Trainings on spoken digits that are made up: what figures 4 and 5 do with runs is tested with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.figures.distbelief import speech_planned, speech_runs
from adamctl.bench.figures.distbelief.speech_methods import TARGET
from adamctl.bench.figures.runs import Training
from adamctl.config.experiment import Experiment
from adamctl.config.resolved import read_resolved
from adamctl.model.partition.rates import Rate, Rates
from adamctl.model.scaling.rates import ServerRates

WARM_S = 10.0
STAGES = (("dense", "440 -> 256"), ("dense", "256 -> 256"), ("softmax", "256 -> 10"))
RATES = Rates(
    l2_bytes=1 << 20, l3_bytes=1 << 25, update_per_s=8e9,
    stages=tuple(Rate(kind, label, 1 << 19, 128, 4e10) for kind, label in STAGES),
)  # fmt: skip
SERVER_RATES = ServerRates("adagrad", 1, 1e9, 2e9, 4e10)
SPEED = {"sgd": 1.0, "adagrad": 2.0, "lbfgs": 1.5}


def speed_of(algorithm: str, replicas: int) -> float:
    """Returns how much faster evaluations follow one another than those of one replica of plain SGD."""
    return SPEED[algorithm] * float(replicas**0.6)


class FakeTrainings:
    """Accuracy grows with time, faster with more replicas, to TARGET in two steps; a rate of `bad_rate` diverges.

    Attributes:
        trainings: all that were asked for, with their experiments.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bad_rate: float = 0.0) -> None:
        self.trainings: list[tuple[Training, Experiment]] = []
        self._bad_rate = bad_rate
        monkeypatch.setattr(speech_runs, "train", self._train)
        monkeypatch.setattr(speech_runs, "core_shares", no_groups)
        monkeypatch.setattr(speech_planned, "measure_rates", lambda plans, batch: RATES)
        monkeypatch.setattr(speech_planned, "server_rates", lambda rule: SERVER_RATES)

    @property
    def names(self) -> list[str]:
        """Method and seed of each."""
        return [f"{experiment.name}/{training.seed}" for training, experiment in self.trainings]

    def _train(self, training: Training, groups: ControlGroups | None = None) -> dict[str, Any]:
        assert (training.machines is None) == (groups is None)
        experiment = read_resolved(training.experiment)
        self.trainings.append((training, experiment))
        if training.kept is not None:
            training.kept.mkdir(parents=True)
        if experiment.optimizer.lr == self._bad_rate:
            return {"result": {}, "ended": "diverged", "evaluations": [], "progress": []}
        speed = speed_of(experiment.optimizer.type, experiment.cluster.workers)
        passes = min(experiment.train.passes, 4)
        moments = [(WARM_S * number / speed, TARGET - 0.1 + 0.05 * number) for number in range(1, passes + 1)]
        evaluations = [{"train_seconds": at_s, "top1": top1} for at_s, top1 in moments]
        progress = [{"train_seconds": at_s, "train_top1": top1 + 0.01, "images_per_s": 100.0} for at_s, top1 in moments]
        result = {"train_seconds": moments[-1][0], "top1": moments[-1][1]}
        return {"result": result, "ended": "time", "evaluations": evaluations, "progress": progress}


@contextmanager
def no_groups() -> Iterator[ControlGroups]:
    yield ControlGroups(Path("/nowhere"))

"""The methods of DistBelief's figures 4 and 5 are trainings that `adamctl train` takes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from adamctl.bench.figures.distbelief.speech_methods import (
    ADAGRAD,
    EXAMPLE,
    LBFGS_8,
    METHODS,
    SGD,
    TRIED,
    Method,
    at_replicas,
    experiment_of,
)
from adamctl.bench.figures.machines import check_machines
from adamctl.bench.figures.runs import example
from adamctl.config.load import load_experiment
from adamctl.config.resolved import read_resolved, to_toml

WITH_RATES = [method for method in METHODS if method.rate is not None]


@pytest.mark.parametrize("method", [*METHODS, at_replicas(ADAGRAD, 2)], ids=lambda method: method.name)
def test_an_experiment_is_read_as_it_was_written(method: Method, tmp_path: Path) -> None:
    base = load_experiment(example(EXAMPLE)).experiment
    experiment = experiment_of(base, method, 0.5, target=0.9)
    path = tmp_path / "experiment.toml"
    path.write_text(to_toml(experiment))
    read = read_resolved(path)
    assert read == experiment and read.model == base.model and read.train.target == 0.9
    assert (read.optimizer.type, read.cluster.workers) == (method.algorithm, method.replicas)
    if method.rate is not None:
        assert (read.optimizer.lr, read.optimizer.schedule.type) == (method.rate, "constant")
        assert (read.train.n_push, read.train.n_fetch) == (1, 1)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_its_machines_fit(method: Method) -> None:
    check_machines(method.machines)
    assert method.cores == pytest.approx(0.3 + 0.15 * method.replicas)


@pytest.mark.parametrize("method", WITH_RATES, ids=lambda method: method.name)
def test_a_rate_is_one_of_three_a_factor_of_three_apart(method: Method) -> None:
    tried = TRIED[method.name]
    assert method.rate in tried and all(2.9 < high / low < 3.4 for low, high in pairwise(tried))


def test_another_number_of_replicas_keeps_the_rate() -> None:
    assert at_replicas(ADAGRAD, 8).name == "adagrad-8" and at_replicas(ADAGRAD, 8).rate == ADAGRAD.rate
    assert at_replicas(LBFGS_8, 1).title == "Sandblaster L-BFGS, 1 replica"
    assert [method.begins_warm for method in METHODS] == [method is not SGD for method in METHODS]

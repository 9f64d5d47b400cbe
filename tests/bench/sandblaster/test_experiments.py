"""The experiments of the benchmark are ones that `adamctl train` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.sandblaster.experiments import Workload
from adamctl.config.load import load_experiment

LITTLE = Workload("digits", hidden=(5, 4), batch=8)


def test_the_file_says_what_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "bench.toml"
    file.write_text(LITTLE.toml(7, {"cluster.workers": 2, "optimizer.weight_decay": 0.5, "cluster.store": "none"}))
    experiment = load_experiment(file).experiment
    assert experiment.model == LITTLE.model == LITTLE.downpour().model
    assert (experiment.optimizer.type, experiment.optimizer.weight_decay) == ("lbfgs", 0.5)
    assert (experiment.train.passes, experiment.train.batch, experiment.cluster.workers) == (7, 8, 2)


@pytest.mark.parametrize("workload", [Workload(), Workload("digits")])
def test_sizes_are_those_of_the_data_and_the_network(workload: Workload) -> None:
    pixels = {"mnist": 784, "digits": 64}[workload.data]
    assert workload.parameters == (pixels + 1) * 300 + 301 * 10
    assert workload.name == f"{workload.data} {pixels}-300-10"
    assert workload.examples == {"mnist": 60_000, "digits": 1_437}[workload.data]

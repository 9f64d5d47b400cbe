"""Evaluations are measured beside Downpour: here that it runs and counts right, on a network of nothing."""

from __future__ import annotations

from contextlib import closing

import pytest

from adamctl.bench.sandblaster.evaluation import Evaluator, measure_evaluation
from adamctl.config.experiment import DataConfig, Experiment, OptimizerConfig, TrainConfig
from adamctl.model.description import Dense, Model, Softmax


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setenv("ADAMCTL_KERNELS", "numpy")
    return Experiment(
        name="nothing",
        model=Model((6,), (Dense(5, "relu"), Softmax(3))),
        data=DataConfig(format="npz", source="nowhere.npz"),
        optimizer=OptimizerConfig(lr=0.01),
        train=TrainConfig(batch=4),
    )


def test_both_sides_are_measured(experiment: Experiment) -> None:
    found = measure_evaluation(experiment, 2, 4, 4096, rounds=2, seconds=0.02)
    assert found.portions == 20, "about 200 multiply-adds for a parameter: 12 of each portion"
    assert len(found.ratios_vs_downpour) == 2
    assert min(found.evaluation_images_per_s, found.downpour_images_per_s, found.ratio_vs_downpour) > 0


def test_a_round_ends_with_whole_bundles_and_says_what_failed(experiment: Experiment) -> None:
    with closing(Evaluator(experiment, 1, 4, 4096)) as evaluator:
        assert evaluator.run(0.0).examples == 2 * 20 * 4
        for bundle in evaluator._bundles:
            bundle.labels[:] = 9
        with pytest.raises(ValueError, match="label"):
            evaluator.run(0.0)

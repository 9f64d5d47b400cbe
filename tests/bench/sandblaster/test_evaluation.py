"""Evaluations are measured beside Downpour: here that it runs and counts right, on a network of nothing."""

from __future__ import annotations

from contextlib import closing

import pytest

from adamctl.bench.sandblaster import evaluation
from adamctl.bench.sandblaster.evaluation import Evaluator, measure_evaluation
from adamctl.bench.worker.trainer import Rate
from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment, OptimizerConfig, TrainConfig
from adamctl.model.description import Dense, Model, Softmax
from adamctl.roles.coordinator.core.bundles import cut_bundles

PORTIONS = cut_bundles(4096, 4, 6 * 5 + 5 * 3, 53)[0].examples // 4


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
    found = measure_evaluation(experiment, 2, 4, 4096, slices=3, seconds=0.02)
    assert found.portions == PORTIONS, "as a coordinator cuts the batch"
    assert 0 < found.spread[0] <= found.ratio_vs_downpour <= found.spread[1]
    assert min(found.evaluation_images_per_s, found.downpour_images_per_s, found.processor_ratio) > 0


def test_ratios_are_of_what_was_measured(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each pair, and the median of them: one disturbed slice changes nothing."""
    evaluations = iter([Rate(1, 1.0), Rate(300, 1.0), Rate(30, 1.0), Rate(3000, 100.0)])  # the first warms up
    trainings = iter([Rate(1, 1.0), Rate(100, 1.0), Rate(10, 1.0), Rate(10, 0.01)])
    monkeypatch.setattr(evaluation.Evaluator, "run", lambda self, seconds: next(evaluations))
    monkeypatch.setattr(evaluation.Trainer, "run", lambda self, seconds: next(trainings))
    found = measure_evaluation(experiment, 1, 4, 4096, slices=3, seconds=0.01)
    assert found.ratio_vs_downpour == 3.0
    assert (found.evaluation_images_per_s, found.downpour_images_per_s) == (30.0, 100.0)
    assert found.spread == (pytest.approx(1.515), 3.0)


def test_a_round_ends_with_whole_bundles_and_says_what_failed(experiment: Experiment) -> None:
    with closing(Evaluator(experiment, 1, 4, 4096)) as evaluator:
        assert evaluator.run(0.0).examples == 2 * PORTIONS * 4
        for bundle in evaluator._bundles:
            bundle.labels[:] = 9
        with pytest.raises(ValueError, match="label"):
            evaluator.run(0.0)

"""Whole runs whose classes weigh differently: every way to train computes the same weighted loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.experiment import Experiment, OptimizerConfig
from adamctl.errors import ConfigurationError
from adamctl.kernels.layers.weighted_loss import WeightedLoss
from tests.roles.worker.test_server import CLASSES, EXAMPLES, make_experiment, plain_kernels, world

__all__ = ["plain_kernels"]


def uneven(folder: Path, train: dict[str, Any], **cluster: Any) -> Experiment:
    """The heaps of `test_server`, with few training examples of the first one: 6 instead of 60."""
    experiment = make_experiment(folder, train=train, **cluster)
    with np.load(folder / "heaps.npz") as archive:
        arrays = dict(archive)
    keep = np.flatnonzero((arrays["y_train"] != 0) | (np.arange(EXAMPLES) < 24))
    np.savez(folder / "heaps.npz", **{**arrays, "x_train": arrays["x_train"][keep], "y_train": arrays["y_train"][keep]})
    return experiment


@pytest.mark.parametrize(
    ("cluster", "batch_algorithm"),
    [({}, False), ({"workers": 2, "partitions": 2}, False), ({"ps": 0}, False), ({}, True)],
    ids=["replica", "partitions", "own parameters", "L-BFGS"],
)
async def test_a_worker_weighs_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], batch_algorithm: bool
) -> None:
    used: list[list[float]] = []
    backward = WeightedLoss._losses

    def noted(self: WeightedLoss, outputs: Any, labels: Any, error: Any) -> Any:
        used.append(self.class_weights.tolist())
        return backward(self, outputs, labels, error)

    monkeypatch.setattr(WeightedLoss, "_losses", noted)
    experiment = uneven(tmp_path, {"class_weights": "balanced"}, **cluster)
    if batch_algorithm:
        experiment = msgspec.structs.replace(experiment, optimizer=OptimizerConfig(type="lbfgs"))
    async with world(tmp_path, workers=cluster.get("workers", 1)) as w:
        summary = await w.summary(await w.start_run(experiment))
    assert summary["passes"] >= 2
    right = [186 / (CLASSES * count) for count in (6, 60, 60, 60)]
    assert used and all(one == pytest.approx(right) for one in used)


async def test_a_class_that_the_data_do_not_have_ends_the_run_at_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'train.class_weights: there is no class "dog"; expected one of 0'):
        async with world(tmp_path, workers=1) as w:
            await w.summary(await w.start_run(uneven(tmp_path, {"class_weights": {"dog": 2.0}})))

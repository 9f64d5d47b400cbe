"""What a store costs training: the row says which run was faster, and the experiment is one that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.store import training as store_training
from adamctl.bench.store.training import EXPERIMENT, MODEL_BYTES, UNITS, Run, training_with_and_without
from adamctl.config.load import load_experiment
from adamctl.model.layout import build_layout


def test_pairs_are_compared_and_either_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, int]] = []

    def train(place: Path, store: str, window_s: float, passes: int) -> Run:
        trained.append((store, passes))
        return Run(900.0 if store == "disk" else 1000.0, 10.0, 21.0 if store == "disk" else 20.0)

    monkeypatch.setattr(store_training, "_train", train)
    monkeypatch.setattr(store_training.os, "cpu_count", lambda: 2)
    row = training_with_and_without(tmp_path, 5.0, 14.37, 2, lambda line: None)
    assert trained == [("none", 2), ("disk", 10), ("none", 10), ("none", 10), ("disk", 10)]
    assert row["fraction_of_limit"] == 0.9 and row["fractions"] == [0.9, 0.9]
    assert (row["images_per_s"], row["limit_images_per_s"]) == (900.0, 1000.0)
    assert row["extra_processor_share"] == pytest.approx(0.05)


def test_the_experiment_is_a_model_of_64_megabytes(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text(EXPERIMENT.format(store="disk", units=UNITS, passes=3, window_s=5.0))
    experiment = load_experiment(file).experiment
    assert experiment.cluster.store == "disk" and experiment.cluster.loss_window_s == 5.0
    assert 4 * build_layout(experiment.model, 1).parameter_count == MODEL_BYTES
    assert 60e6 < MODEL_BYTES < 68e6

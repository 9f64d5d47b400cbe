"""A resolved experiment reads back as itself."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from adamctl.config.experiment import (
    ClusterConfig,
    DataConfig,
    Experiment,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from adamctl.config.resolved import read_resolved, to_toml, write_resolved
from adamctl.model.description import Conv2D, Dense, Dropout, MaxPool2D, Model, Softmax
from adamctl.model.partition.cuts import Cut
from tests.optimizers import third_party


def experiment() -> Experiment:
    layers = (
        Conv2D(4, (3, 5), stride=2, padding="same", activation="relu", init="he"),
        MaxPool2D(2, stride=(1, 2)),
        Dropout(0.5),
        Dense(8, activation="tanh"),
        Softmax(3),
    )
    return Experiment(
        name="round-trip",
        model=Model((9, 9, 1), layers),
        seed=2**40,
        data=DataConfig(
            format="npz",
            source='/data/with "quotes"\\and\nlines.npz',
            search=("/a b", "/ü"),
            sampling={"0": 2.0, "a b": 0.5},
        ),
        optimizer=OptimizerConfig(lr=1e-05, schedule=ScheduleConfig(type="one_cycle", warmup=0.25)),
        train=TrainConfig(target=0.99, local_lr=0.0, evaluate_every=0.25),
        cluster=ClusterConfig(threads=3, ps=2, workers=2, partitions=2, memory_per_worker="2 GB"),
        partition={"conv2d1": "rows", "dense1": Cut("units", (3,)), "softmax1": Cut(whole=1)},
    )


def test_round_trip(tmp_path: Path) -> None:
    path = write_resolved(experiment(), tmp_path)
    assert path.name == "experiment.toml"
    assert read_resolved(path) == experiment()


@pytest.mark.parametrize("given", ["none", "balanced", (0.5, 2.0, 0.0), {"0": 2.0, "a b": 0.5}])
def test_class_weights_of_any_kind_are_read_back(tmp_path: Path, given: Any) -> None:
    wanted = Experiment(name="x", model=Model((4,), (Softmax(3),)), train=TrainConfig(class_weights=given))
    assert read_resolved(write_resolved(wanted, tmp_path)) == wanted


def test_settings_of_another_package_are_read_back_with_their_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_party.use(tmp_path, monkeypatch)
    settings = {"step": 1.0, "count": 1, "on": False, 'a "name"': "\n#", "scales": (0.5, 2), "none": ()}
    optimizer = OptimizerConfig(type="descent", batch=100, settings=settings)
    wanted = Experiment(name="x", model=Model((4,), (Softmax(3),)), optimizer=optimizer)
    found = read_resolved(write_resolved(wanted, tmp_path)).optimizer
    assert found == optimizer
    assert {name: type(value) for name, value in found.settings.items()} == {
        name: type(value) for name, value in settings.items()
    }


def test_defaults_are_written_and_unset_values_are_not() -> None:
    plain = Experiment(name="plain", model=Model((4,), (Softmax(2),)))
    values = tomllib.loads(to_toml(plain))
    assert (values["train"]["n_push"], values["train"]["batch"]) == ("auto", 32)
    assert "target" not in values["train"] and "partition" not in values
    assert (values["optimizer"]["history"], values["optimizer"]["batch"]) == (10, "full")


def test_settings_change_it_and_the_environment_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_TRAIN__PASSES", "99")
    path = write_resolved(experiment(), tmp_path)
    changed = read_resolved(path, ["cluster.workers=4"])
    assert (changed.cluster.workers, changed.train.passes) == (4, experiment().train.passes)

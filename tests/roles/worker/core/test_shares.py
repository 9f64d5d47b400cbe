"""A batch is cut where that makes gradients younger and costs next to nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adamctl.config.experiment import Experiment, OptimizerConfig, TrainConfig
from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.worker.core import shares as core_shares

CONVOLUTIONS = Model(
    (32, 32, 1),
    (Conv2D(16, 3, padding="same"), Conv2D(32, 3, padding="same"), MaxPool2D(2), MaxPool2D(2), Softmax(10)),
)
DENSE = Model((784,), (Dense(128, "relu"), Softmax(10)))


def experiment(model: Model = CONVOLUTIONS, rule: dict[str, Any] | None = None, **train: Any) -> Experiment:
    optimizer = OptimizerConfig(**{"type": "sgd", **(rule or {})})
    return Experiment(name="x", model=model, optimizer=optimizer, train=TrainConfig(**{"batch": 64, **train}))


def shares_of(experiment: Experiment, threads: int) -> int:
    return core_shares.shares_of(experiment, build_layout(experiment.model, 1).parameter_count, threads)


@pytest.mark.parametrize(("threads", "batch", "shares"), [(1, 64, 1), (2, 64, 2), (2, 63, 1), (3, 64, 2), (4, 96, 4)])
def test_threads_take_equal_shares_of_a_batch(threads: int, batch: int, shares: int) -> None:
    assert shares_of(experiment(batch=batch), threads) == shares


@pytest.mark.parametrize("batch", [16, 32, 64, 256])
def test_a_share_is_large_enough(batch: int) -> None:
    assert batch // shares_of(experiment(batch=batch), 64) >= 16


def test_dense_layers_which_use_each_weight_once_are_left_whole() -> None:
    assert shares_of(experiment(DENSE), 8) == 1
    assert shares_of(experiment(DENSE, batch=4096), 2) == 2


@pytest.mark.parametrize("rule", [{"type": "momentum"}, {"type": "adam"}, {"weight_decay": 1e-4}, {"clip_norm": 1.0}])
def test_other_rules_would_make_other_steps(rule: dict[str, Any]) -> None:
    assert shares_of(experiment(rule=rule), 2) == 1


@pytest.mark.parametrize(
    "train", [{"n_push": 1}, {"n_fetch": 1}, {"local_lr": 0.0}, {"consistency": "sync"}, {"max_staleness": 8}]
)
def test_who_has_decided_how_steps_go_gets_those(train: dict[str, Any]) -> None:
    assert shares_of(experiment(**train), 2) == 1


def test_shares_are_whole_numbers_of_examples() -> None:
    made = msgspec.structs.replace(experiment(), train=TrainConfig(batch=100))
    assert 100 % shares_of(made, 3) == 0

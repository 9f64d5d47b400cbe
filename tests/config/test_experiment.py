"""What `auto` becomes under which rule: when a replica fetches, what it applies itself, how far it looks ahead."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from adamctl.config.experiment import ADAPTIVE, FIRST_PUSHES, Experiment, OptimizerConfig, TrainConfig
from adamctl.model.description import Model, Softmax


def experiment(rule: str, **train: Any) -> Experiment:
    optimizer = OptimizerConfig(type=rule, momentum=0.8, beta1=0.7)  # type: ignore[arg-type]
    return Experiment(name="x", model=Model((4,), (Softmax(2),)), optimizer=optimizer, train=TrainConfig(**train))


@pytest.mark.parametrize(
    ("rule", "follows", "local", "kept"),
    [
        ("sgd", True, 1.0, 0.0),
        ("momentum", True, 0.0, 0.8),
        ("adagrad", True, 0.0, 0.0),
        ("rmsprop", True, 0.0, 0.0),
        ("adam", True, 0.0, 0.7),
    ],
)
def test_auto_depends_on_the_rule(rule: str, follows: bool, local: float, kept: float) -> None:
    found = experiment(rule)
    assert found.fetch_follows_push is follows
    assert found.local_learning_rate_factor() == local
    assert found.kept_direction == kept


def test_only_plain_sgd_waits_for_more_than_the_first_pushes() -> None:
    waited = {rule: experiment(rule).first_pushes for rule in ("sgd", "momentum", *ADAPTIVE)}
    assert waited == {"sgd": inf} | dict.fromkeys(("momentum", *ADAPTIVE), FIRST_PUSHES)


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_in_step_there_is_nothing_to_follow_or_to_look_ahead_for(rule: str) -> None:
    found = experiment(rule, consistency="sync")
    assert (found.fetch_follows_push, found.kept_direction, found.local_learning_rate_factor()) == (False, 0.0, 0.0)


@pytest.mark.parametrize("name", ["lbfgs", "descent"])
def test_under_a_batch_algorithm_workers_change_nothing_and_push_what_can_be_added_up(name: str) -> None:
    found = experiment(name)
    assert (found.fetch_follows_push, found.kept_direction, found.applies_locally) == (False, 0.0, False)
    assert (found.push_protocol, experiment("sgd").push_protocol) == ("gradient", "auto")


def test_numbers_fix_what_auto_chooses() -> None:
    found = experiment("momentum", n_fetch=1)
    assert (found.fetch_follows_push, found.kept_direction, found.local_learning_rate_factor()) == (False, 0.0, 1.0)
    assert experiment("momentum", local_lr=0.1).kept_direction == 0.0, "what it applied itself would count twice"
    assert experiment("momentum", local_lr=0.0).kept_direction == 0.8
    train = experiment("adam", n_push=4).train
    assert (train.steps_per_push, train.steps_per_fetch) == (4, 4)
    assert experiment("adam", n_push=4, n_fetch=2).train.steps_per_fetch == 2

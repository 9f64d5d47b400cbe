"""The batch algorithm of an experiment: where its settings come from, what it is run with, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.config.experiment import Experiment, OptimizerConfig, TrainConfig
from adamctl.errors import ConfigurationError
from adamctl.model.description import Model, Softmax
from adamctl.model.rule import VECTORS
from adamctl.optimizers.configured import (
    algorithm_of,
    batch_examples,
    check,
    rule_of,
    settings_of,
    start_of,
    vectors_of,
)
from adamctl.optimizers.execution import BUDGET, Progress
from adamctl.optimizers.lbfgs import LBFGSSettings
from adamctl.optimizers.local import LocalVectors
from adamctl.optimizers.owlqn import OWLQNSettings


def experiment(optimizer: OptimizerConfig, passes: int = 10) -> Experiment:
    train = TrainConfig(passes=passes)
    return Experiment(name="x", model=Model((4,), (Softmax(2),)), optimizer=optimizer, train=train)


def test_our_settings_are_keys_of_the_optimizer() -> None:
    assert settings_of(experiment(adam.LBFGS(7, evaluations_max=5))) == LBFGSSettings(history=7, evaluations_max=5)
    assert settings_of(experiment(adam.OWLQN(0.5, change_tolerance=0.0))) == OWLQNSettings(l1=0.5, change_tolerance=0.0)


def test_vectors_are_those_that_the_program_declares() -> None:
    kept, scratch = vectors_of(experiment(adam.LBFGS(2)))
    assert (set(kept), set(scratch)) == ({"g", "s0", "s1", "y0", "y1"}, {"d", "t", "h"})
    rule = rule_of(experiment(adam.LBFGS(2)))
    assert (rule.name, rule.kept, rule.scratch) == (VECTORS, kept, scratch)


def test_an_update_rule_stays_what_it_is() -> None:
    chosen = experiment(adam.Momentum(0.1, weight_decay=0.5))
    assert rule_of(chosen) == chosen.optimizer.rule
    check(chosen)


def test_a_program_begins_with_decay_and_budget_and_goes_on_from_a_commit() -> None:
    start = start_of(experiment(adam.CG(weight_decay=0.5, gradient_tolerance=0.0, change_tolerance=0.0), passes=3))
    first = start(None)
    assert first.request is not None
    asked: list[str] = []
    while first.request is not None:
        asked.append(type(first.request).__name__)
        numbers = [1.0] * sum(type(one).__name__ == "Reduce" for one in getattr(first.request, "commands", ()))
        first.answer(2.0 if asked[-1] == "Evaluate" else numbers)
    assert asked[0] == "Round", "the L2 term needs the square of where it is evaluated"
    assert (first.stop_reason, first.evaluations) == (BUDGET, 3)
    assert start(Progress(first.committed.state, evaluations=2)).evaluations == 2


def test_an_evaluation_is_of_what_the_experiment_says() -> None:
    assert batch_examples(experiment(adam.CG()), 1000) == 1000
    assert batch_examples(experiment(adam.CG(batch=1000)), 1000) == 1000
    with pytest.raises(ConfigurationError, match=r"optimizer\.batch: found 1001; .* has 1000 examples; lower it"):
        batch_examples(experiment(adam.CG(batch=1001)), 1000)


# --- other packages ---------------------------------------------------------------------------------------------------


def test_one_of_another_package_takes_its_settings_from_both_tables_and_runs(package: Path) -> None:
    chosen = experiment(adam.Optimizer("descent", step=0.5, gradient_tolerance=0.125), passes=100)
    assert chosen.optimizer.settings == {"step": 0.5}
    settings: Any = settings_of(chosen)
    assert (settings.step, settings.gradient_tolerance, settings.scales) == (0.5, 0.125, (1.0,))
    assert vectors_of(chosen) == ((), ("h",))
    outcome = LocalVectors(lambda x: (0.5 * float(x @ x), x), np.ones(3)).run(algorithm_of(chosen).program, settings)
    assert outcome.stop_reason == "flat"
    assert outcome.x == pytest.approx(np.full(3, 0.125))


def test_settings_go_by_the_names_that_files_have(package: Path) -> None:
    settings: Any = settings_of(experiment(adam.Optimizer("twice", **{"first-step": 0.5})))
    assert settings.first_step == 0.5


def test_lists_given_in_python_are_what_a_file_would_give(package: Path) -> None:
    assert adam.Optimizer("descent", scales=[0.5, 1.0]).settings == {"scales": (0.5, 1.0)}


def test_a_key_of_ours_has_our_default_whoever_reads_it(package: Path) -> None:
    settings: Any = settings_of(experiment(adam.Optimizer("descent")))
    assert settings.gradient_tolerance == OptimizerConfig().gradient_tolerance


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"setp": 0.5},
            r'settings\.setp: unknown setting of "descent"\. Did you mean "step"\? Allowed here: scales, step',
        ),
        ({"history": 5}, r'optimizer\.history: found 5 with type = "descent", which reads gradient_tolerance; leave'),
        ({"lr": 0.5}, r"optimizer\.lr: found 0\.5 .* leave the key out"),
        ({"step": "long"}, r"optimizer\.settings\.step: Expected `float`, got `str`"),
        ({"scales": [1.0, "x"]}, r"optimizer\.settings\.scales\[1\]: Expected `float`"),
        ({"settings": {"gradient_tolerance": 1.0}}, r"settings\.gradient_tolerance: .*; write optimizer\.gradient_tol"),
    ],
)
def test_settings_that_it_does_not_read_are_refused_by_name(package: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check(experiment(adam.Optimizer("descent", **keys)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stumbling", r"its program failed before its first request: IndexError"),
        ("taking", r'optimizer\.weight_decay: "taking" has a setting of this name, which is not its own'),
        ("twice", r"optimizer 'twice': vector 'g' is declared twice"),
        ("broken", r"cannot be loaded"),
        ("elsewhere", r"expected one of lbfgs"),
    ],
)
def test_an_algorithm_that_cannot_run_is_refused_before_anything_starts(package: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check(experiment(adam.Optimizer(name)))

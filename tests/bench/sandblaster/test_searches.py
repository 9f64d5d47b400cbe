"""Evaluations to SciPy's losses are counted on both sides, and the worst problem counts."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from adamctl.bench.sandblaster.searches import (
    Search,
    evaluations_row,
    evaluations_to,
    measure_searches,
    per_iteration_row,
)
from adamctl.errors import ConfigurationError
from tests.optimizers.problems import quadratic, rosenbrock

SEARCHES = [
    Search("easy", 0.1, scipy_evaluations=20, evaluations=18, iterations=30, all_evaluations=33),
    Search("hard", 0.2, scipy_evaluations=40, evaluations=42, iterations=10, all_evaluations=17),
]


def test_both_minimise_from_the_same_point() -> None:
    problems = {"bowl": lambda: quadratic(100.0, 20), "valley": lambda: rosenbrock(2)}
    bowl, valley = measure_searches(problems, 12)
    assert 1 < bowl.scipy_evaluations <= 12 and bowl.evaluations <= 1.1 * bowl.scipy_evaluations
    assert bowl.loss < quadratic(100.0, 20)[0](np.zeros(20, np.float32))[0]
    assert 1 <= bowl.evaluations_per_iteration <= 2
    assert valley.evaluations <= 24, "it may take twice as many"


def test_a_loss_that_ours_does_not_reach_is_infinitely_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adamctl.bench.sandblaster.searches.SURPLUS", 0.2)
    (found,) = measure_searches({"valley": lambda: rosenbrock(2)}, 20)
    assert found.ratio_vs_scipy == float("inf")


def test_the_first_evaluation_below_the_target_counts() -> None:
    assert evaluations_to(np.array([3.0, 1.0, 2.0, 1.0]), 1.0) == 2
    assert evaluations_to(np.array([3.0]), 1.0) == float("inf")


def test_the_worst_problem_counts_and_iterations_are_added_up() -> None:
    assert evaluations_row(SEARCHES) == {"ratio": 1.05, "median": pytest.approx(0.975), "problems": 2}
    assert per_iteration_row(SEARCHES) == {"ratio": 1.25, "worst": 1.7, "iterations": 40}


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ConfigurationError, match="--only evaluations: expected SciPy"):
        measure_searches({"bowl": lambda: quadratic(2.0, 4)}, 3)

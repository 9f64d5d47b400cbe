"""Conjugate gradient, written on the interface of programs alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adamctl.errors import NotFiniteError
from adamctl.kernels.array import Array
from adamctl.optimizers.cg import conjugate_gradient
from adamctl.optimizers.descent import DescentSettings
from adamctl.optimizers.local import LocalVectors
from tests.optimizers.problems import quadratic, rosenbrock
from tests.optimizers.resuming import expect_the_same_from_any_commit


def test_it_finds_the_bottom_of_rosenbrocks_valley() -> None:
    objective, start = rosenbrock(4)
    outcome = LocalVectors(objective, start).run(conjugate_gradient, DescentSettings(gradient_tolerance=1e-4), 2000)
    assert outcome.x == pytest.approx(np.ones(4), abs=1e-2)


def test_on_a_quadratic_its_directions_are_conjugate() -> None:
    """With exact steps the squares of the error are bounded by those of linear conjugate gradient."""
    condition = 100.0
    objective, start = quadratic(condition)
    losses: list[float] = []
    LocalVectors(objective, start).run(
        conjugate_gradient,
        DescentSettings(),
        500,
        on_commit=lambda snapshot: losses.append(snapshot.progress.state["loss"]),
    )
    rate = (math.sqrt(condition) - 1) / (math.sqrt(condition) + 1)
    for number in range(0, 40, 10):
        assert losses[number] <= 4 * rate ** (2 * number) * losses[0]


def test_an_iteration_is_three_rounds_and_a_further_trial_two() -> None:
    objective, start = quadratic(1e3)
    outcome = LocalVectors(objective, start).run(conjugate_gradient, DescentSettings(), 2000)
    assert outcome.rounds == 2 + 3 * outcome.state["iteration"] + 2 * outcome.further_trials


def test_made_again_from_any_commit_it_ends_in_the_same_bits() -> None:
    expect_the_same_from_any_commit(conjugate_gradient, DescentSettings(), rosenbrock(4), budget=100)


def test_a_search_that_fails_starts_again_down_the_gradient() -> None:
    """Everything is refused for as long as a search lasts that began in another direction."""
    objective, start = quadratic(100.0)
    settings, snapshots = DescentSettings(evaluations_max=5), []
    LocalVectors(objective, start).run(conjugate_gradient, settings, 500, snapshots.append)
    conjugate = [one for one in snapshots if (one.kept["d"] != -one.kept["g"]).any()]
    ill_after = conjugate[3].progress.evaluations
    count = 0

    def ill_for_a_while(x: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        loss, gradient = objective(x)
        return (math.nan if ill_after < count <= ill_after + 5 else loss), gradient

    snapshots.clear()
    outcome = LocalVectors(ill_for_a_while, start).run(conjugate_gradient, settings, 2000, snapshots.append)
    restarts = [snapshot.progress.state["restarts"] for snapshot in snapshots]
    before, after = snapshots[restarts.index(1) - 1 : restarts.index(1) + 1]
    assert (before.kept["d"] != -before.kept["g"]).any()
    assert (after.kept["d"] == -after.kept["g"]).all()
    assert after.progress.state["slope"] == -after.progress.state["gradient_square"]
    assert outcome.state["gradient_max"] < 1e-3


def test_it_says_why_it_stopped() -> None:
    objective, start = quadratic(10.0)
    to_the_end = DescentSettings(gradient_tolerance=0.0, change_tolerance=0.0)
    assert (
        LocalVectors(objective, start).run(conjugate_gradient, DescentSettings(change_tolerance=0), 500).stop_reason
        == "gradient"
    )
    assert (
        LocalVectors(objective, start).run(conjugate_gradient, DescentSettings(gradient_tolerance=0), 500).stop_reason
        == "change"
    )
    lying = LocalVectors(lambda x: (float(x @ x), -x), np.ones(3)).run(conjugate_gradient, to_the_end, 500)
    assert lying.stop_reason == "precision"
    with pytest.raises(NotFiniteError):
        LocalVectors(lambda x: (math.nan, x), np.ones(3)).run(conjugate_gradient, to_the_end, 500)

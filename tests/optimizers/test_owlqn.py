"""OWL-QN finds the minimum of a loss with an L1 term, with the same parameters at 0 as a slow and simple method."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adamctl.errors import NotFiniteError
from adamctl.kernels.array import Array
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.optimizers.local import LocalVectors, Snapshot, carry_out
from adamctl.optimizers.owlqn import _OWLQN, OWLQNSettings, owlqn
from adamctl.optimizers.vectors import Vectors
from tests.optimizers.problems import quadratic
from tests.optimizers.resuming import expect_the_same_from_any_commit

CHANCE = np.random.default_rng(1)
EXAMPLES = CHANCE.normal(size=(60, 40))
TARGETS = EXAMPLES[:, :8] @ CHANCE.normal(size=8) * 3 + 0.1 * CHANCE.normal(size=60)


def regression(x: Array) -> tuple[float, Array]:
    errors = EXAMPLES @ x.astype(float) - TARGETS
    return 0.5 * float(errors @ errors) / 60, EXAMPLES.T @ errors / 60


def by_thresholds(l1: float) -> Array:
    """Proximal gradient steps, each of which cannot overshoot."""
    x, curvature = np.zeros(40), np.linalg.eigvalsh(EXAMPLES.T @ EXAMPLES / 60)[-1]
    for _ in range(3000):
        z = x - regression(x)[1] / curvature
        x = np.sign(z) * np.maximum(np.abs(z) - l1 / curvature, 0)
    return x


@pytest.mark.parametrize(("l1", "start"), [(0.01, 1.0), (0.1, 1.0), (0.1, 0.0), (0.5, -1.0), (100.0, 1.0)])
def test_it_finds_the_minimum_and_its_zeros(l1: float, start: float) -> None:
    settings = OWLQNSettings(l1=l1, change_tolerance=0.0)
    outcome = LocalVectors(regression, np.full(40, start)).run(owlqn, settings, budget=500)
    expected = by_thresholds(l1)
    assert outcome.stop_reason == "gradient"
    assert outcome.x == pytest.approx(expected, abs=1e-3)
    assert ((outcome.x != 0) == (expected != 0)).all()
    assert outcome.state["nonzero"] == np.count_nonzero(expected)
    assert outcome.state["loss"] == pytest.approx(regression(expected)[0] + l1 * np.abs(expected).sum(), rel=1e-6)


def test_without_an_l1_term_its_minimum_is_that_of_lbfgs() -> None:
    objective, start = quadratic(10.0)
    with_zero = LocalVectors(objective, start).run(owlqn, OWLQNSettings(l1=0.0), budget=500)
    without = LocalVectors(objective, start).run(lbfgs, LBFGSSettings())
    assert with_zero.x == pytest.approx(without.x, abs=1e-3)


def test_the_pseudo_gradient_is_that_of_the_side_that_falls() -> None:
    """Equation 4, for parameters below, at and above 0 and gradients on both sides of the L1 term."""
    x = np.array([-1, -1, 1, 1, 0, 0, 0, 0, 0, 0], np.float32)
    g = np.array([0.5, -0.5, 0.5, 0, 0.5, -0.5, 0.2, -0.2, 0, 0.3], np.float32)
    expected = pseudo_gradient(x, g, 0.3)
    assert expected == pytest.approx([0.2, -0.8, 0.8, 0.3, 0.2, -0.2, 0, 0, 0, 0], abs=1e-7)

    v = Vectors()
    program = _OWLQN(v, OWLQNSettings(l1=0.3))
    vectors = {name: np.zeros(10, np.float32) for name in v.kept_names + v.scratch_names} | {"x": x, "g": g}
    carry_out(program.pseudo_gradient(program.p, v.x, program.g), vectors)
    assert vectors["p"] == pytest.approx(expected, abs=1e-7)


def pseudo_gradient(x: Array, g: Array, l1: float) -> Array:
    """Equation 4 of the paper, as it stands there."""
    left, right = g - l1, g + l1
    at_zero = np.where(left > 0, left, np.where(right < 0, right, 0))
    return np.where(x != 0, g + l1 * np.sign(x), at_zero)


def test_steps_go_where_the_loss_falls_and_do_not_cross_zero() -> None:
    snapshots: list[Snapshot] = []
    LocalVectors(regression, np.ones(40)).run(owlqn, OWLQNSettings(l1=0.1), 500, on_commit=snapshots.append)
    xs = np.array([snapshot.kept["x"] for snapshot in snapshots])
    ps = np.array([pseudo_gradient(snapshot.kept["x"], snapshot.kept["g"], 0.1) for snapshot in snapshots])
    assert len(xs) > 10
    assert (np.sign(xs[1:]) * np.sign(xs[:-1]) >= 0).all()
    assert (np.sign(xs[1:] - xs[:-1]) * np.sign(ps[:-1]) <= 0).all()
    assert (xs[-1] == 0).any()


def test_made_again_from_any_commit_it_ends_in_the_same_bits() -> None:
    settings = OWLQNSettings(l1=0.05, history=4)
    expect_the_same_from_any_commit(owlqn, settings, (regression, np.ones(40)))


def test_it_takes_shorter_steps_where_the_loss_is_not_finite_and_ends_where_there_are_none() -> None:
    def walled(x: Array) -> tuple[float, Array]:
        loss, gradient = regression(x)
        return (loss if np.abs(x - 1).max() < 0.01 or loss < 3 else math.nan), gradient

    outcome = LocalVectors(walled, np.ones(40)).run(owlqn, OWLQNSettings(), budget=300)
    assert math.isfinite(outcome.state["loss"])
    assert outcome.state["iteration"] > 1
    lying = LocalVectors(lambda x: (float(x @ x), -x), np.ones(3)).run(owlqn, OWLQNSettings(), budget=500)
    assert (lying.stop_reason, lying.x.tolist()) == ("precision", [1.0, 1.0, 1.0])
    with pytest.raises(NotFiniteError):
        LocalVectors(lambda x: (math.nan, x), np.ones(3)).run(owlqn, OWLQNSettings(), budget=500)

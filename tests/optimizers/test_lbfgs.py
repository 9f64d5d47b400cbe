"""L-BFGS on numpy: what it asks for, when it stops, what it does not learn from, and how it goes on after a failure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adamctl.errors import NotFiniteError
from adamctl.kernels.array import Array
from adamctl.model.commands import Reduce, Set
from adamctl.optimizers.execution import Execution
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.optimizers.local import LocalVectors, Objective, Outcome, Snapshot
from adamctl.optimizers.vectors import Commit, Round, State, Vectors
from tests.optimizers.problems import quadratic, rosenbrock
from tests.optimizers.resuming import expect_the_same_from_any_commit
from tests.optimizers.test_recursion import two_loop

TO_THE_END = LBFGSSettings(gradient_tolerance=0.0, change_tolerance=0.0)


def test_it_finds_the_bottom_of_rosenbrocks_valley() -> None:
    objective, start = rosenbrock(10)
    settings = LBFGSSettings(gradient_tolerance=1e-3, change_tolerance=0.0)
    outcome = LocalVectors(objective, start).run(lbfgs, settings, 1000)
    assert outcome.stop_reason == "gradient"
    assert outcome.x == pytest.approx(np.ones(10), abs=1e-3)
    assert outcome.state["gradient_max"] <= 1e-3


def test_an_iteration_is_three_rounds_and_a_further_trial_two() -> None:
    objective, start = rosenbrock(10)
    for weight_decay in (0.0, 1e-3):
        settings = LBFGSSettings(gradient_tolerance=1e-3, change_tolerance=0.0)
        outcome = LocalVectors(objective, start, weight_decay).run(lbfgs, settings, 1000)
        assert outcome.stop_reason == "gradient"
        assert outcome.further_trials > 5
        squares = 2 if weight_decay else 0  # of x and t, until it is known that losses are wanted there
        expected = 2 + squares + 3 * outcome.state["iteration"] + 2 * outcome.further_trials
        assert outcome.rounds == expected
        assert outcome.evaluations == 1 + outcome.state["iteration"] + outcome.further_trials


def spied(requests: list[Any]) -> Any:
    """L-BFGS that shows its requests."""

    def program(v: Vectors, settings: LBFGSSettings, state: State) -> Iterator[Any]:
        inner, answer = lbfgs(v, settings, state), None
        while True:
            try:
                request = inner.send(answer)
            except StopIteration as stopped:
                return stopped.value
            requests.append(request)
            answer = yield request

    return program


def test_a_measurement_is_4m_and_8_numbers() -> None:
    requests: list[Any] = []
    objective, start = rosenbrock(10)
    LocalVectors(objective, start).run(spied(requests), LBFGSSettings(history=7), 1000)
    counts = [
        sum(isinstance(one, Reduce) for one in request.commands) for request in requests if isinstance(request, Round)
    ]
    assert max(counts) == 4 * 7 + 8


def expect_the_directions_of_the_recursion(
    objective: Objective, start: Array, settings: LBFGSSettings, budget: int
) -> list[Snapshot]:
    """After each commit the next direction is that of the recursion on the kept vectors. Returns the commits."""
    requests: list[Any] = []
    snapshots: list[Snapshot] = []
    LocalVectors(objective, start).run(spied(requests), settings, budget, snapshots.append)
    after = iter(snapshots)
    for request, following in pairwise(requests):
        if not isinstance(request, Commit):
            continue
        kept = {name: values.astype(float) for name, values in next(after).kept.items()}
        slots = [pair[0] for pair in request.state["history"]]
        expected = two_loop(kept["g"], [(kept[f"s{slot}"], kept[f"y{slot}"]) for slot in slots])
        command = following.commands[0]
        assert isinstance(command, Set)
        found = np.sum([factor * kept[name] for factor, name in command.terms], axis=0)
        assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    return snapshots


@pytest.mark.parametrize("condition", [1e1, 1e4])
def test_directions_are_those_of_the_recursion_on_vectors(condition: float) -> None:
    assert len(expect_the_directions_of_the_recursion(*quadratic(condition), TO_THE_END, 60)) > 20


def test_made_again_from_any_commit_it_ends_in_the_same_bits() -> None:
    expect_the_same_from_any_commit(lbfgs, LBFGSSettings(history=4), rosenbrock(10))


@pytest.mark.slow
def test_it_ends_in_the_same_bits_by_compiled_commands() -> None:
    objective, start = rosenbrock(10)
    by_numpy = LocalVectors(objective, start).run(lbfgs, LBFGSSettings(), 1000)
    compiled = LocalVectors(objective, start, backend="numba").run(lbfgs, LBFGSSettings(), 1000)
    assert (compiled.x.tobytes(), compiled.state) == (by_numpy.x.tobytes(), by_numpy.state)


def test_weight_decay_is_an_l2_term_of_the_loss() -> None:
    objective, start = quadratic(100.0)

    def with_term(x: Array) -> tuple[float, Array]:
        loss, gradient = objective(x)
        x = x.astype(float)
        return loss + 0.05 * float(x @ x), gradient + 0.1 * x

    apart = LocalVectors(objective, start, 0.1).run(lbfgs, LBFGSSettings(), 1000)
    within = LocalVectors(with_term, start).run(lbfgs, LBFGSSettings(), 1000)
    assert apart.x == pytest.approx(within.x, abs=1e-4)
    assert apart.state["loss"] == pytest.approx(within.state["loss"], rel=1e-6)


# --- when it stops ----------------------------------------------------------------------------------------------------


def on_quadratic(settings: LBFGSSettings, budget: int = 1000) -> Outcome:
    return LocalVectors(*quadratic(1e3)).run(lbfgs, settings, budget)


def test_it_says_why_it_stopped() -> None:
    assert on_quadratic(LBFGSSettings(gradient_tolerance=1e-2, change_tolerance=0.0)).stop_reason == "gradient"
    assert on_quadratic(LBFGSSettings(gradient_tolerance=0.0, change_tolerance=1e-3)).stop_reason == "change"
    assert on_quadratic(TO_THE_END, budget=10).stop_reason == "budget"
    assert on_quadratic(TO_THE_END, budget=10).evaluations == 10


def test_a_start_at_the_minimum_is_the_end() -> None:
    outcome = LocalVectors(rosenbrock(4)[0], np.ones(4)).run(lbfgs, TO_THE_END, 1000)
    assert (outcome.stop_reason, outcome.evaluations, outcome.state["iteration"]) == ("gradient", 1, 0)


@pytest.mark.parametrize("condition", [1.0, 1e2])
def test_where_float32_has_no_better_point_it_ends_with_precision(condition: float) -> None:
    """And soon: a step that leaves all parameters as they are needs no evaluation."""
    evaluations: list[int] = []
    outcome = LocalVectors(*quadratic(condition)).run(
        lbfgs, TO_THE_END, 1000, on_commit=lambda snapshot: evaluations.append(snapshot.progress.evaluations)
    )
    assert outcome.stop_reason == "precision"
    assert outcome.state["loss"] < 1e-13
    assert outcome.evaluations - evaluations[-1] < 10


def test_a_gradient_that_lies_ends_with_precision_at_the_best_point() -> None:
    outcome = LocalVectors(lambda x: (float(x @ x), -x), np.ones(3)).run(lbfgs, TO_THE_END, 1000)
    assert (outcome.stop_reason, outcome.x.tolist()) == ("precision", [1.0, 1.0, 1.0])
    assert outcome.evaluations <= 21


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_start_that_is_not_finite_is_an_error(loss: float) -> None:
    with pytest.raises(NotFiniteError, match="at the start"):
        LocalVectors(lambda x: (loss, x), np.ones(3)).run(lbfgs, LBFGSSettings(), 1000)


# --- what goes wrong on the way ---------------------------------------------------------------------------------------


def hills(x: Array) -> tuple[float, Array]:
    """Cosines of several lengths: nearly half of the plane curves down."""
    x, lengths = x.astype(float), np.array([1.0, 2.0, 3.0])
    return float(np.sum(np.cos(lengths * x)) + 0.01 * x @ x), -lengths * np.sin(lengths * x) + 0.02 * x


def test_a_pair_along_which_the_loss_curves_down_is_not_kept() -> None:
    """A search of one evaluation takes any decrease, so it ends where the curvature condition does not hold."""
    start, settings = np.array([0.01, 0.02, 0.005]), LBFGSSettings(evaluations_max=1)
    snapshots = expect_the_directions_of_the_recursion(hills, start, settings, 200)
    assert snapshots[-1].progress.state["pairs_skipped"] >= 1
    expect_the_same_from_any_commit(lbfgs, settings, (hills, start), commits_min=4)
    kept = 0
    for snapshot in snapshots:
        for slot, s_y, y_y in snapshot.progress.state["history"]:
            s, y = (snapshot.kept[f"{name}{slot}"].astype(float) for name in "sy")
            assert s @ y > 0
            assert (s_y[-1], y_y[-1]) == pytest.approx((s @ y, y @ y), rel=1e-12)
            kept += 1
    assert kept > 0


def test_what_is_not_finite_is_never_accepted() -> None:
    """The loss is undefined on a half of space that first steps lead into."""

    def logarithm(x: Array) -> tuple[float, Array]:
        x = x.astype(float)
        with np.errstate(all="ignore"):
            return float(np.sum(x - 0.01 * np.log(x))), 1 - 0.01 / x

    losses: list[float] = []
    snapshots: list[Snapshot] = []
    outcome = LocalVectors(logarithm, np.full(5, 0.5)).run(
        lbfgs, LBFGSSettings(change_tolerance=0.0), 1000, on_commit=snapshots.append, on_evaluation=losses.append
    )
    assert not all(map(math.isfinite, losses))
    assert all(math.isfinite(snapshot.progress.state["loss"]) for snapshot in snapshots)
    assert all(np.isfinite(values).all() for snapshot in snapshots for values in snapshot.kept.values())
    assert outcome.x == pytest.approx(np.full(5, 0.01), rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_measurement_that_is_not_finite_counts_as_an_infinite_loss(bad: float) -> None:
    execution = Execution(lbfgs, LBFGSSettings())
    answers: list[Any] = [1.0, [4.0, 1.0], None, [-4.0], 0.5, [-1.0, 1.0, 1.0, -0.1, 0.1, bad, 0.1, 0.1]]
    steps = []
    for answer in answers:
        execution.answer(answer)
        if isinstance(execution.request, Round):
            sets = [command for command in execution.request.commands if isinstance(command, Set)]
            steps += [command.terms[1][0] for command in sets if command.target == "t"]
    assert steps == pytest.approx([0.5, 0.05])


def test_a_failed_search_takes_the_best_decrease() -> None:
    """The loss falls to a low point and jumps; its slopes lie, so that no trial fulfils the conditions."""

    def jumping(x: Array) -> tuple[float, Array]:
        z = float(x[0])
        return (-z if z <= 1 else 0.01 * z - 0.5), -np.ones(1)

    losses: list[float] = []
    snapshots: list[Snapshot] = []
    settings = LBFGSSettings(evaluations_max=4)
    LocalVectors(jumping, np.zeros(1)).run(
        lbfgs, settings, budget=6, on_commit=snapshots.append, on_evaluation=losses.append
    )
    start, best, *others = losses[:5]
    assert (start, best) == (0.0, -1.0)
    assert best < min(others)
    assert losses[5] == best  # evaluated again: its gradient has been overwritten
    assert [snapshot.progress.state["loss"] for snapshot in snapshots] == [start, best]
    assert snapshots[-1].kept["x"] == [1.0]


def test_the_best_decrease_is_taken_after_steps_that_float32_does_not_show() -> None:
    """The loss falls by too little at one point and rises everywhere else, so that the search goes back to x."""

    def spike(x: Array) -> tuple[float, Array]:
        return (0.0, -np.ones(1)) if x[0] == 1 else (-1e-9 if x[0] == 2 else 1.0, np.ones(1))

    snapshots: list[Snapshot] = []
    LocalVectors(spike, np.ones(1)).run(lbfgs, TO_THE_END, 30, snapshots.append)
    assert snapshots[1].kept["x"] == [2.0]
    assert snapshots[1].progress.state["loss"] == -1e-9
    assert snapshots[1].progress.evaluations < 10


def test_without_any_decrease_the_history_is_dropped_and_the_way_down_tried() -> None:
    """For as long as one search lasts everything is refused, as of a worker that overflows."""
    objective, start = rosenbrock(4)
    settings = LBFGSSettings(evaluations_max=5)
    snapshots: list[Snapshot] = []
    LocalVectors(objective, start).run(lbfgs, settings, 1000, snapshots.append)
    before = snapshots[10].progress
    count = 0

    def ill_for_a_while(x: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        loss, gradient = objective(x)
        return (math.nan if before.evaluations < count <= before.evaluations + 5 else loss), gradient

    snapshots.clear()
    outcome = LocalVectors(ill_for_a_while, start).run(lbfgs, settings, 1000, snapshots.append)
    assert len(before.state["history"]) > 5
    assert snapshots[10].progress == before
    assert len(snapshots[11].progress.state["history"]) == 1
    assert outcome.state["restarts"] == 1
    assert outcome.x == pytest.approx(np.ones(4), abs=1e-3)


def test_the_state_is_small_and_shows_how_it_goes() -> None:
    outcome = LocalVectors(*quadratic(1e3, size=100)).run(lbfgs, LBFGSSettings(history=31), budget=60)
    assert {"iteration", "loss", "gradient_max", "step"} <= outcome.state.keys()
    assert len(json.dumps(outcome.state)) < 50_000

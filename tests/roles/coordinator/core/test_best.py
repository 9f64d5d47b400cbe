"""The best by the validation part: kept when it is found, as it was evaluated; patience ends a run that finds none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adamctl.model.description import Dense, Model
from adamctl.model.metric import RMSE, metric_of
from adamctl.roles.coordinator.core.evaluate import best_of
from adamctl.roles.coordinator.core.instructions import Finished, Instruction, WriteCheckpoint
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.coordinator.core.report import run_progress
from tests.roles.coordinator.simulation import Simulation, plan


def result(top1: float, loss: float | None = 0.5) -> EvaluationResult:
    return EvaluationResult(passes=1, progress=0.1, train_seconds=1.0, split="validation", top1=top1, loss=loss)


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([], None),
        ([result(0.5), result(0.7), result(0.6)], 1),
        ([result(0.7, 0.4), result(0.7, 0.3), result(0.7, 0.35)], 1),
        ([result(0.7, None), result(0.7, 9.0)], 1),
        ([result(0.7), result(0.7)], 0),
    ],
)
def test_the_best_is_by_top_1_then_by_loss_then_the_earliest(results: Sequence[EvaluationResult], best: int) -> None:
    assert best_of(results) == best


def measured(value: float | None) -> EvaluationResult:
    return EvaluationResult(
        passes=1, progress=0.1, train_seconds=1.0, split="validation", top1=None, loss=0.5, metric="rmse",
        metric_value=value, larger_is_better=False,
    )  # fmt: skip


def test_of_a_metric_that_is_to_be_small_the_smallest_is_the_best() -> None:
    assert best_of([measured(None), measured(2.0), measured(0.5), measured(0.5), measured(1.0)]) == 2


def test_the_coordinator_makes_the_metric_of_sums_and_a_target_below_it_ends_the_run() -> None:
    """Each example's loss is 0.25, so the root of their mean is 0.5."""
    for target, ends in ((0.6, True), (0.4, False)):
        chosen = plan(passes=3, evaluate_on="validation", target=target)
        simulation = Simulation(1, replace(chosen, metric=RMSE), evaluation_examples=1000)
        simulation.add_worker("w")
        simulation.run()
        told = run_progress(simulation.core.run, (), (), {})
        assert (told.metric, told.larger_is_better, told.top1, told.train_top1) == ("rmse", False, None, None)
        assert told.metric_value == told.best_metric_value == 0.5
        assert (len(told.evaluations) == 1) is ends
        assert told.result is not None and told.result["time_to"].keys() == ({"0.6"} if ends else set())


def test_a_metric_of_the_users_that_fails_ends_the_run_with_its_words() -> None:
    model = Model((3,), (Dense(2),), "tests.losses_for_tests:Fails")
    chosen = replace(plan(passes=3, evaluate_on="validation"), metric=metric_of(model))
    simulation = Simulation(1, chosen, evaluation_examples=1000)
    simulation.add_worker("w")
    simulation.run()
    assert simulation.core.run.final_state == "failed"
    assert simulation.core.run.cause.startswith("Fails.metric: TypeError: ")


class Played(Simulation):
    """A run whose evaluations come out as they are told to."""

    def __init__(self, results: Sequence[float], workers: int = 1, **changes: object) -> None:
        self.accuracies = list(results)
        chosen = plan(passes=len(results), evaluate_on="validation", **changes)
        super().__init__(1, replace(chosen, workers=workers), evaluation_examples=1000)
        self.trained_at: list[int] = []
        for number in range(workers):
            self.add_worker(f"w{number}")

    def _carry_out(self, instruction: Instruction) -> None:
        self.accuracy = self.accuracies[min(len(self.evaluated), len(self.accuracies) - 1)]
        if isinstance(instruction, WriteCheckpoint):
            self.trained_at.append(len(self.handed_out))
        super()._carry_out(instruction)


def numbers(run: Simulation) -> list[tuple[int, bool]]:
    """How many evaluations each checkpoint knows, and whether the last of them is of its parameters."""
    return [(len(snapshot.evaluations), snapshot.evaluated) for snapshot in run.checkpoints]


def test_every_best_result_is_followed_by_a_checkpoint_and_by_nothing_trained_before_it_is_written() -> None:
    run = Played([0.5, 0.8, 0.7, 0.75, 0.8], keep_best=True, checkpoint_every=0.0)
    run.write_s = 50.0
    handed: list[int] = []
    while run.finished is None:
        writing = bool(run.writing)
        before = len(run.handed_out)
        assert run.advance()
        if writing and run.writing:
            handed.append(len(run.handed_out) - before)
    assert numbers(run) == [(1, True), (2, True), (5, True)], "two that were best, and the last"
    assert not any(handed)
    assert run.finished == Finished("ended", "")


def test_without_it_only_what_is_due_is_written() -> None:
    run = Played([0.5, 0.8, 0.7], checkpoint_every=0.0)
    run.run()
    assert numbers(run) == [(3, True)]


def test_a_checkpoint_between_evaluations_says_that_it_was_not_evaluated() -> None:
    run = Played([0.5, 0.6], evaluate_every=2.0, checkpoint_every=0.5)
    run.run()
    assert [evaluated for _, evaluated in numbers(run)] == [False, False, False, True]


def test_a_best_checkpoint_that_cannot_be_written_does_not_stop_the_run() -> None:
    run = Played([0.5, 0.8, 0.7], keep_best=True, checkpoint_every=0.0)
    run.write_failure = "disk full"
    run.until(lambda: len(run.evaluated) == 2)
    run.write_failure = ""
    run.run()
    assert run.finished == Finished("ended", "")


def test_patience_ends_the_run_with_its_last_checkpoint() -> None:
    run = Played([0.5, 0.8, 0.7, 0.75, 0.9, 0.9], keep_best=True, patience=2, checkpoint_every=0.0)
    run.run()
    assert run.finished is not None and run.finished.state == "ended"
    assert len(run.evaluated) == 4 and numbers(run) == [(1, True), (2, True), (4, True)]
    assert any("ending early: no better validation result than top-1 0.8000" in text for text in run.said)


def test_replicas_that_run_free_are_not_held_up() -> None:
    run = Played([0.5, 0.8, 0.7], workers=3, keep_best=True, checkpoint_every=0.0)
    run.run()
    assert run.finished == Finished("ended", "") and run.reported.total() == 3 * 200

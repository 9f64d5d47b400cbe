"""Damaged examples that workers leave out: counted, and the end of a run that has no others."""

from __future__ import annotations

import pytest

from adamctl.roles.coordinator.core.instructions import Finished
from adamctl.roles.coordinator.core.report import run_progress
from adamctl.wire.messages import EvaluateTask, TrainTask
from tests.roles.coordinator.simulation import Simulation, plan


class Skipping(Simulation):
    """Every fourth training example is damaged, and every tenth of the test split."""

    def skipped(self, task: TrainTask | EvaluateTask) -> int:
        return len(range(task.start, task.stop, 10 if isinstance(task, EvaluateTask) else 4))


class AllOfAPass(Simulation):
    def skipped(self, task: TrainTask | EvaluateTask) -> int:
        return task.stop - task.start if isinstance(task, TrainTask) and task.pass_number == 1 else 0


class AllOfTheTestSplit(Simulation):
    def skipped(self, task: TrainTask | EvaluateTask) -> int:
        return task.stop - task.start if isinstance(task, EvaluateTask) else 0


class Boasting(Simulation):
    """Of the first range of each kind it says that it left out more than there is."""

    def skipped(self, task: TrainTask | EvaluateTask) -> int:
        return 10**9 if task.start == 0 else 0


def test_skipped_examples_are_counted_and_never_silent() -> None:
    run = Skipping(1)
    run.add_worker("w0")
    run.run()
    shown = run_progress(run.core.run, (), (), {})
    assert run.finished == Finished("ended", "")
    assert shown.examples == 600 and shown.skipped == 150
    assert shown.result is not None and shown.result["skipped"] == 150
    evaluation = shown.evaluations[-1]
    seen = run.core.run.desk.examples
    assert evaluation.skipped == shown.result["evaluation_skipped"] == -(-seen // 10)
    assert evaluation.loss == 0.25, "a mean over those that were seen"
    assert run.core.run.snapshot().skipped == 150


def test_what_two_workers_have_done_is_counted_once() -> None:
    run = Skipping(1, plan(passes=2, evaluate_every=0.0))
    run.add_worker("slow", seconds_per_example=3.0)
    run.add_worker("fast")
    run.run()
    assert run.core.run.tally.skipped == run.core.run.tally.examples // 4


@pytest.mark.parametrize(("kind", "what"), [(AllOfAPass, "pass 2"), (AllOfTheTestSplit, "the test split")])
def test_a_pass_or_a_split_without_a_whole_example_ends_the_run(kind: type[Simulation], what: str) -> None:
    run = kind(1)
    run.add_worker("w0")
    run.run()
    assert run.finished is not None and run.finished.state == "failed"
    assert f"every example of {what} is damaged" in run.finished.cause


def test_a_range_of_which_more_is_left_out_than_it_has_ends_no_run() -> None:
    run = Boasting(1)
    run.add_worker("w0")
    run.run()
    assert run.finished == Finished("ended", "")
    tally, (*_, evaluation) = run.core.run.tally, run.core.run.desk.results
    assert 0 < tally.skipped < tally.examples
    assert 0 < evaluation.skipped < run.core.run.desk.examples

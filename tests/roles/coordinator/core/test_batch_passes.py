"""Runs of batch algorithms as the coordinator's state machine sees them: passes, waits at commits, and ends."""

from __future__ import annotations

from typing import Any, cast

import pytest

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.batch_job import BatchJob, BatchSnapshot
from adamctl.roles.coordinator.core.instructions import (
    Answer,
    Evaluated,
    Finished,
    Instruction,
    LeaveBatch,
    Say,
    WriteCheckpoint,
)
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.sameness import Sameness
from adamctl.wire.messages import EvaluateTask, NextTaskRequest, TaskReport
from tests.roles.coordinator.simulation import plan

EXAMPLES, TEST_EXAMPLES = 500, 1500


class PlayedJob:
    """What the state machine reads of a batch algorithm."""

    def __init__(self) -> None:
        self.algorithm, self.passes, self.loss = "played", 0, 0.5
        self.commit: int | None = 0
        self.stop_reason: str | None = None
        self.sameness = Sameness({})

    def snapshot(self) -> BatchSnapshot:
        return BatchSnapshot(state={"loss": self.loss}, evaluations=self.passes, commit=self.commit or 0)


class Run:
    """One run. Evaluations on the test part are answered at once, if `evaluates`."""

    def __init__(self, workers: int = 1, snapshot: events.RunSnapshot | None = None, **changes: Any) -> None:
        changes = {"passes": 100, "evaluate_every": 0.0, "checkpoint_every": 0.0, "workers": workers} | changes
        self.core, self.now_s, self.token = RunCore(plan(**changes), 100.0), 100.0, 0
        self.job = PlayedJob()
        if snapshot is not None and snapshot.batch is not None:
            self.job.passes = snapshot.batch.evaluations
        self.seen: list[Instruction] = []
        self.tasks: dict[str, list[EvaluateTask]] = {}
        self.parked: dict[int, str] = {}
        self.step(events.Ready(EXAMPLES, TEST_EXAMPLES, snapshot, cast(BatchJob, self.job)))
        for number in range(workers):
            self.token += 1
            self.step(events.WorkerJoins(self.token, f"w{number}", 1, 1))
            self.ask(f"w{number}")

    def step(self, event: events.Event, after_s: float = 0.0) -> None:
        self.now_s += after_s
        found = self.core.step(event, self.now_s)
        self.seen += found
        for one in found:
            if isinstance(one, Answer):
                assert not one.reply.train, "bundles go another way"
                self.tasks.setdefault(self.parked.pop(one.token), []).extend(one.reply.evaluate)

    def ask(self, node: str, after_s: float = 0.0) -> None:
        """Reports what it was given, and asks for more."""
        self.token += 1
        self.parked[self.token] = node
        given = self.tasks.pop(node, [])
        reports = tuple(TaskReport(task.id, task.stop - task.start, 1.0, task.stop - task.start) for task in given)
        self.step(events.TasksWanted(self.token, NextTaskRequest(node, 1, reports, 4, 5.0)), after_s)

    def evaluate(self, evaluations: int = 1, after_s: float = 1.0) -> None:
        """So many evaluations of the batch, and a commit."""
        assert not self.core.holds_batch, "it must not go on"
        self.job.passes += evaluations
        self.job.commit = (self.job.commit or 0) + 1
        self.step(events.BatchMoved(), after_s)

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.seen if isinstance(one, kind)]


def test_an_evaluation_is_a_pass_and_no_range_is_handed_out() -> None:
    run = Run()
    for evaluations in (1, 2, 1):
        run.evaluate(evaluations)
    book = run.core.run.book
    assert (book.current, book.handed_out, run.core.run.tally.examples) == (4, 4 * EXAMPLES, 4 * EXAMPLES)
    assert run.core.run.train_seconds == pytest.approx(3.0)
    assert run.core.run.tally.updates == 3


def test_the_only_worker_evaluates_while_the_program_waits() -> None:
    run = Run(evaluate_every=2.0)
    run.evaluate()
    assert not run.core.holds_batch
    run.evaluate(2)
    assert run.core.holds_batch and run.core.run.state == "evaluating"
    trained_s = run.core.run.train_seconds
    run.ask("w0", after_s=7.0)
    assert run.of(Evaluated)[0].result.passes == 2.0
    assert not run.core.holds_batch
    assert run.core.run.train_seconds == trained_s, "evaluating is not training"
    run.evaluate()
    assert run.core.run.train_seconds == pytest.approx(trained_s + 1.0)


def test_with_another_worker_the_program_goes_on_meanwhile() -> None:
    run = Run(workers=2, evaluate_every=2.0)
    run.evaluate(2)
    assert not run.core.holds_batch and any(run.tasks.values())


def test_the_program_waits_while_a_checkpoint_of_its_commit_is_written() -> None:
    run = Run(checkpoint_every=3.0)
    run.evaluate(3)
    (written,) = run.of(WriteCheckpoint)
    assert (written.snapshot.batch.commit, written.snapshot.batch.evaluations) == (1, 3)
    assert run.core.holds_batch
    run.step(events.CheckpointWritten(written.number))
    assert not run.core.holds_batch


def test_nothing_is_written_in_the_middle_of_a_commit() -> None:
    run = Run()
    run.evaluate()
    run.job.commit = None
    run.step(events.BatchMoved())
    run.token += 1
    run.step(events.CheckpointWanted(run.token))
    assert not run.of(WriteCheckpoint)
    run.evaluate()
    assert [one.snapshot.batch.evaluations for one in run.of(WriteCheckpoint)] == [2]


def test_a_stop_waits_for_the_commit_on_its_way() -> None:
    run = Run()
    run.evaluate()
    run.job.commit = None
    run.step(events.BatchMoved())
    run.step(events.StopWanted("enough", checkpoint=True))
    assert run.core.holds_batch and not run.of(WriteCheckpoint) and not run.of(Finished)
    run.job.commit, run.job.passes = 2, 2
    run.step(events.BatchMoved())
    (written,) = run.of(WriteCheckpoint)
    assert written.snapshot.batch.commit == 2
    run.step(events.CheckpointWritten(written.number))
    assert run.of(Finished) == [Finished("stopped", "enough")]


def test_a_stop_does_not_wait_for_servers_for_ever() -> None:
    run = Run()
    run.evaluate()
    run.job.commit = None
    run.step(events.BatchMoved())
    run.step(events.StopWanted("enough", checkpoint=True))
    run.step(events.Tick(), after_s=run.core.run.wakeup_s() - run.now_s)
    assert not run.of(WriteCheckpoint)
    assert run.of(Finished) == [Finished("stopped", "enough")]
    assert any("no last checkpoint" in one.text for one in run.of(Say))


@pytest.mark.parametrize("reason", ["budget", "gradient", "my own"])
def test_the_run_ends_when_the_program_stops(reason: str) -> None:
    run = Run()
    run.evaluate(5)
    run.job.stop_reason, run.job.passes = reason, 6
    run.step(events.BatchMoved())
    assert run.core.run.state == "evaluating", "the last point is evaluated"
    run.ask("w0")
    (written,) = run.of(WriteCheckpoint)
    run.step(events.CheckpointWritten(written.number))
    assert run.of(Finished) == [Finished("ended", run.of(Finished)[0].cause)]
    assert run.core.run.tally.examples == 6 * EXAMPLES
    assert bool(run.of(Say)) == (reason != "budget")


def test_a_run_of_which_the_budget_is_used_up_goes_on_with_more() -> None:
    run = Run(passes=4)
    run.evaluate(4)
    assert not run.of(Finished) and not run.core.holds_batch, "the program itself says when it stops"
    run.job.stop_reason = "budget"
    run.step(events.BatchMoved())
    run.ask("w0")
    snapshot = run.of(WriteCheckpoint)[0].snapshot
    other = Run(snapshot=snapshot, passes=6)
    other.evaluate()
    assert other.core.run.book.handed_out == 5 * EXAMPLES
    assert (snapshot.updates, other.core.run.tally.updates) == (1, 2), "its commits are counted on"


def test_bundles_of_a_worker_that_is_gone_are_anybodys() -> None:
    run = Run(workers=2)
    run.step(events.WorkerLost("w0", 1, "its connection closed"))
    assert run.of(LeaveBatch) == [LeaveBatch(("w0", 1))]


def test_without_a_worker_no_time_is_trained() -> None:
    run = Run()
    run.step(events.WorkerLost("w0", 1, "its connection closed"), after_s=2.0)
    run.step(events.Tick(), after_s=9.0)
    assert run.core.run.train_seconds == pytest.approx(2.0)

"""Training ranges held by workers: hand-out, reports, deaths."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

from adamctl.roles.coordinator.core.clock import RunStats, TrainingClock
from adamctl.roles.coordinator.core.ranges import Range, RangeAllocator
from adamctl.wire.messages import TaskReport, TrainTask

WorkerKey: TypeAlias = tuple[str, int]
"""Node name and incarnation: a restarted process is a different worker."""

LOST_KEPT_MAX = 4096
"""How many assignments of dead workers are remembered, so that a late report is recognised."""


@dataclass
class Assignment:
    """A range that was handed out. `lost`: its worker was declared dead and the range taken back."""

    worker: WorkerKey
    given: Range
    lost: bool = False


class TrainingWork:
    """Which worker has which range. Invariant: the clock runs exactly while a range is handed out and not lost."""

    def __init__(self, book: RangeAllocator, clock: TrainingClock, tally: RunStats) -> None:
        self.book, self.clock, self.tally = book, clock, tally
        self.assignments: dict[int, Assignment] = {}
        self._out: dict[WorkerKey, int] = {}
        self._skipped: Counter[int] = Counter()  # by pass

    def out(self, worker: WorkerKey) -> int:
        """How many ranges a worker has and has not reported."""
        return self._out.get(worker, 0)

    def hand_out(self, worker: WorkerKey, task_id: int, now_s: float) -> TrainTask | None:
        given = self.book.take()
        if given is None:
            return None
        return self.assign(worker, task_id, given, now_s)

    def assign(self, worker: WorkerKey, task_id: int, given: Range, now_s: float) -> TrainTask:
        """Notes that a worker has a range."""
        self.assignments[task_id] = Assignment(worker, given)
        self._out[worker] = self.out(worker) + 1
        self.clock.hand_out(now_s)
        progress_start, progress_stop = self.book.progress(given)
        return TrainTask(task_id, given.pass_number, given.start, given.stop, progress_start, progress_stop)

    def report(self, worker: WorkerKey, report: TaskReport, now_s: float) -> bool:
        """Notes a finished range, even a late one of a worker declared dead; returns False if it is not this worker's.

        A range that another worker has done meanwhile counts as duplicate, not as progress.
        """
        assignment = self.assignments.get(report.id)
        if assignment is None or assignment.worker != worker:
            return False
        del self.assignments[report.id]
        if not assignment.lost:
            self._return(worker, now_s)
        given = assignment.given
        progress = self.book.finish(given)
        skipped = min(report.skipped, given.examples)  # else one report of more than that would end the run
        self.tally.add_report(report, given.examples, skipped, progress)
        if progress and skipped:
            self._skipped[given.pass_number] += skipped
        return True

    @property
    def skipped_pass(self) -> int | None:
        """A pass of which every example is damaged and was left out; None if there is none."""
        return next((number for number, count in self._skipped.items() if count >= self.book.examples), None)

    def lose(self, worker: WorkerKey, now_s: float) -> int:
        """Takes back what a worker has, to be handed out again first; returns the number of examples."""
        taken = self.take_back(worker, now_s)
        for _, given in taken:
            self.book.give_back(given)
        return sum(given.examples for _, given in taken)

    def take_back(self, worker: WorkerKey, now_s: float) -> list[tuple[int, Range]]:
        """Returns (task, range) of everything a worker has, which is no longer its own."""
        taken: list[tuple[int, Range]] = []
        for number, assignment in self.assignments.items():
            if assignment.worker == worker and not assignment.lost:
                assignment.lost = True
                self._return(worker, now_s)
                taken.append((number, assignment.given))
        lost = [task_id for task_id, assignment in self.assignments.items() if assignment.lost]
        for task_id in lost[: max(len(lost) - LOST_KEPT_MAX, 0)]:
            del self.assignments[task_id]
        return taken

    def _return(self, worker: WorkerKey, now_s: float) -> None:
        self.clock.take_back(now_s)
        self._out[worker] -= 1
        if not self._out[worker]:
            del self._out[worker]

"""The part of a run's state machine that hands out tasks: ranges to train on and ranges to evaluate."""

from __future__ import annotations

from collections.abc import Callable

from adamctl.roles.coordinator.core.state import RunState, Worker
from adamctl.wire.messages import EvaluateTask, TrainTask


class Tasks:
    """Chooses what a worker does next.

    Attributes:
        run: the run the tasks are of.
        order_due: orders the evaluations and checkpoints that the examples handed out so far make due.
    """

    def __init__(self, run: RunState, order_due: Callable[[], None]) -> None:
        self._run = run
        self._order_due = order_due
        self._last_id = 0

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def evaluate(self, worker: Worker, wanted: int) -> list[EvaluateTask]:
        run = self._run
        current = run.desk.current
        if current is not None and current.worker is None and wanted > 0:
            warm_alone = run.warming and worker.key == run.warm_worker and len(run.workers) > 1
            if not warm_alone and not run.is_early(current):
                run.trained_since_evaluation = False
                run.desk.begin(worker.key, run.train_seconds, run.book.handed_out / run.book.examples_total)
        tasks: list[EvaluateTask] = []
        while len(tasks) < wanted and run.desk.is_with(worker.key):
            tasks.append(run.desk.take(self.next_id()))
        return tasks

    def train(self, worker: Worker, wanted: int) -> list[TrainTask]:
        run = self._run
        if run.batch is not None:
            return []  # bundles go another way
        if run.warming:
            run.warm_worker = run.warm_worker or worker.key
            if run.warm_worker != worker.key:
                return []
        if run.plan.in_step:
            return self._in_step(worker)
        tasks: list[TrainTask] = []
        while len(tasks) < wanted and not run.halted and not run.desk.is_with(worker.key):
            if run.work.out(worker.key) >= worker.ranges_max:
                break
            task = run.work.hand_out(worker.key, self.next_id(), run.now_s)
            if task is None:
                break
            tasks.append(task)
            run.pace.enter(worker.key)
            self._order_due()
        return tasks

    def _in_step(self, worker: Worker) -> list[TrainTask]:
        """Plans further rounds if allowed. Always hands out what is planned already, since others wait for it."""
        run = self._run
        members = list(run.workers)
        while run.gathered and not run.halted and run.rounds.plan(members, self.next_id, run.now_s):
            self._order_due()
        return run.rounds.fetch(worker.key)

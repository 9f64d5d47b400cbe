"""A cluster around the pure core under one seed: workers of random speed that die, go silent, leave and report late.

The simulator is the coordinator's shell: it carries out instructions at once and keeps its own account of everything,
with which the core's is compared.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import (
    Admit,
    Answer,
    Evaluated,
    Finished,
    Instruction,
    Refuse,
    Say,
    WriteCheckpoint,
)
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.work import LOST_KEPT_MAX
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import EvaluateTask, NextTaskReply, NextTaskRequest, TaskReport, TrainTask

PLAN = events.RunPlan(
    job="sim",
    passes=3,
    batch=4,
    range_batches=2,
    pass_fraction=0.75,
    warmstart_steps=0,
    evaluate_every=1.0,
    evaluate_on="test",
    target=None,
    checkpoint_every=1.0,
    workers=8,
    connections=10,
)


@dataclass
class SimulatedWorker:
    """Works through its tasks one after another; `busy_until_s` is when it finishes the first of `tasks`."""

    node: str
    incarnation: int
    seconds_per_example: float
    wait_s: float = 5.0
    silent: bool = False
    joined: bool = False
    parked: int | None = None
    tasks: list[TrainTask | EvaluateTask] = field(default_factory=list)
    busy_until_s: float = 0.0
    reports: list[TaskReport] = field(default_factory=list)
    drained: int = 0
    told_end: str = ""


class Simulation:
    """One run. `advance` moves to the next thing that happens."""

    def __init__(
        self,
        seed: int,
        plan: events.RunPlan = PLAN,
        *,
        examples: int = 200,
        evaluation_examples: int = 2500,
        accuracy: float = 0.5,
        snapshot: events.RunSnapshot | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.plan, self.examples, self.accuracy = plan, examples, accuracy
        self.now_s = 100.0
        self.core = RunCore(plan, self.now_s)
        self.workers: list[SimulatedWorker] = []
        self.tokens: dict[int, SimulatedWorker] = {}
        self.last_token = 0
        self.incarnations = 0
        self.handed_out: list[tuple[TrainTask, SimulatedWorker]] = []
        self.out: dict[int, SimulatedWorker] = {}
        self.reported: Counter[tuple[int, int]] = Counter()
        self.clock_s = snapshot.train_seconds if snapshot else 0.0
        self.said: list[str] = []
        self.evaluated: list[Evaluated] = []
        self.evaluation_order: list[EvaluateTask] = []
        self.checkpoints: list[events.RunSnapshot] = []
        self.writing: list[tuple[float, int]] = []
        self.finished: Finished | None = None
        self.refused: list[Refuse] = []
        self.write_s = 0.5
        self.write_failure = ""
        self.step(events.Ready(examples, evaluation_examples, snapshot))

    # --- the shell ------------------------------------------------------------------------------------------------

    def step(self, event: events.Event) -> None:
        before = set(self.core.run.workers)
        for instruction in self.core.step(event, self.now_s):
            self._carry_out(instruction)
        for worker in [w for w in self.workers if (w.node, w.incarnation) in before - set(self.core.run.workers)]:
            self.forget(worker)
        if self.core.run.ending is not None and self.now_s >= self.core.run.ending.wait_until_s:
            self.out.clear()  # what is not there by now is left undone
        self._check()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Answer(token, reply):
                self._answered(self.tokens.pop(token), token, reply)
            case Admit(token, _):
                self.tokens.pop(token).joined = True
            case Refuse(token, code, _):
                self.refused.append(instruction)
                worker = self.tokens.pop(token)
                if worker.parked == token:
                    worker.parked = None
                if code == ErrorCode.STALE_INCARNATION:
                    worker.joined = False
            case WriteCheckpoint(number, snapshot):
                self.checkpoints.append(snapshot)
                self.writing.append((self.now_s + self.write_s, number))
            case Evaluated():
                self.evaluated.append(instruction)
            case Say(text):
                self.said.append(text)
            case Finished():
                assert self.finished is None, "finished twice"
                self.finished = instruction
                self.out.clear()

    def _answered(self, worker: SimulatedWorker, token: int, reply: NextTaskReply) -> None:
        if worker.parked == token:
            worker.parked = None
        if not worker.tasks:
            worker.busy_until_s = self.now_s
        for task in (*reply.train, *reply.evaluate):
            if isinstance(task, TrainTask):
                self.handed_out.append((task, worker))
                self.out[task.id] = worker
            else:
                self.evaluation_order.append(task)
            worker.tasks.append(task)
        if len(worker.tasks) == len(reply.train) + len(reply.evaluate) and worker.tasks:
            self._begin_task(worker)
        worker.drained += reply.drain
        if reply.ended:
            worker.told_end = reply.reason

    def _begin_task(self, worker: SimulatedWorker) -> None:
        task = worker.tasks[0]
        seconds = (task.stop - task.start) * worker.seconds_per_example * self.random.uniform(0.5, 1.5)
        worker.busy_until_s = self.now_s + seconds

    # --- workers --------------------------------------------------------------------------------------------------

    def add_worker(self, node: str, seconds_per_example: float = 0.01) -> SimulatedWorker:
        self.incarnations += 1
        worker = SimulatedWorker(node, self.incarnations, seconds_per_example)
        self.workers.append(worker)
        self.join(worker)
        return worker

    def _token(self, worker: SimulatedWorker) -> int:
        self.last_token += 1
        self.tokens[self.last_token] = worker
        return self.last_token

    def join(self, worker: SimulatedWorker) -> None:
        self.step(events.WorkerJoins(self._token(worker), worker.node, worker.incarnation, threads=1))

    def ask(self, worker: SimulatedWorker, wanted: int, wait_s: float, **more: bool) -> None:
        reports, worker.reports = tuple(worker.reports), []
        for report in reports:
            self.out.pop(report.id, None)
        token = self._token(worker)
        if wanted:
            worker.parked = token
        staleness, ages = ((1, 2), (0, 1, 2)) if reports else ((), ())
        request = NextTaskRequest(
            worker.node, worker.incarnation, reports, wanted, wait_s, 10, staleness, gradient_ages=ages, **more
        )
        self.step(events.TasksWanted(token, request))

    def skipped(self, task: TrainTask | EvaluateTask) -> int:
        """How many examples of a task are damaged and left out."""
        return 0

    def finish_task(self, worker: SimulatedWorker) -> None:
        task = worker.tasks.pop(0)
        count = task.stop - task.start
        evaluate = isinstance(task, EvaluateTask)
        correct = round(self.accuracy * count) if evaluate else 0
        steps = 0 if evaluate else -(-count // self.plan.batch)
        skipped = self.skipped(task)
        trained = count - skipped
        correct = min(correct, trained)
        worker.reports.append(TaskReport(task.id, trained, 0.25 * trained, correct, steps, 1.0, 0.5, skipped))
        if not evaluate:
            for example in range(task.start, task.stop):
                self.reported[task.pass_number, example] += 1
        if worker.tasks:
            self._begin_task(worker)

    def kill(self, worker: SimulatedWorker) -> None:
        """It is gone, with everything it had; the coordinator sees the connection close."""
        self.workers.remove(worker)
        self.forget(worker)
        self.step(events.WorkerLost(worker.node, worker.incarnation, "the connection closed"))

    def forget(self, worker: SimulatedWorker) -> None:
        self.out = {task_id: owner for task_id, owner in self.out.items() if owner is not worker}

    # --- time -----------------------------------------------------------------------------------------------------

    def advance(self, limit_s: float = 1e9) -> bool:
        """Moves to the next moment at which something happens; False if nothing ever will."""
        for worker in [w for w in self.workers if not w.joined and not w.silent and not w.told_end]:
            if len(self.core.run.workers) < self.plan.workers and self.finished is None:
                worker.tasks, worker.reports, worker.parked = [], [], None
                self.join(worker)
        for worker in [w for w in self.workers if w.joined and not w.silent and not w.told_end]:
            ahead = 3 - len(worker.tasks)
            if worker.parked is None and ahead > 0:
                self.ask(worker, ahead, worker.wait_s)
            elif worker.reports:
                self.ask(worker, 0, 0.0)
        moments = [self.core.run.wakeup_s(), *(at for at, _ in self.writing)]
        moments += [w.busy_until_s for w in self.workers if w.tasks]
        moment = max(min(moments), self.now_s)
        if moment > limit_s:
            return False
        if self.out:
            self.clock_s += moment - self.now_s
        self.now_s = moment
        for worker in [w for w in self.workers if w.tasks and w.busy_until_s <= self.now_s]:
            self.finish_task(worker)
        for written in [entry for entry in self.writing if entry[0] <= self.now_s]:
            self.writing.remove(written)
            failed = events.CheckpointFailed(written[1], self.write_failure)
            self.step(failed if self.write_failure else events.CheckpointWritten(written[1]))
        if self.core.run.wakeup_s() <= self.now_s:
            self.step(events.Tick())
        return True

    def run(self, steps_max: int = 100_000) -> Simulation:
        """Goes on until the run is over and everybody was told."""
        for _ in range(steps_max):
            listening = [w for w in self.workers if w.joined and not w.silent and not w.told_end]
            if self.finished is not None and not listening:
                return self
            assert self.advance() or self.finished, f"nothing will ever happen again in state {self.core.run.state}"
        raise AssertionError(f"still {self.core.run.state} after {steps_max} steps")

    def until(self, reached: Callable[[], object], steps_max: int = 20_000) -> None:
        """Goes on until something has come about."""
        for _ in range(steps_max):
            if reached():
                return
            self.advance()
        raise AssertionError(f"it never came about; state {self.core.run.state}")

    # --- what must always hold ------------------------------------------------------------------------------------

    def _check(self) -> None:
        core = self.core
        assert core.run.clock.ranges_out == len(self.out) or self.finished is not None
        done = sum(len_of(book.done) for book in core.run.book.ledgers.values())
        assert all(book.done_examples == len_of(book.done) for book in core.run.book.ledgers.values())
        assert done <= core.run.tally.examples <= core.run.book.handed_out
        assert abs(core.run.train_seconds - self.clock_s) < 1e-6
        assert len(core.run.work.assignments) <= LOST_KEPT_MAX + 1000


def len_of(ranges: set[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def plan(**changes: object) -> events.RunPlan:
    return replace(PLAN, **changes)  # type: ignore[arg-type]

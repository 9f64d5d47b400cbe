"""The state of a run: everything its state machine remembers, and what can be asked of it at any time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, inf
from typing import Any

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.clock import RunStats, TrainingClock
from adamctl.roles.coordinator.core.evaluate import EVALUATION_RANGE_EXAMPLES, Evaluation, EvaluationQueue
from adamctl.roles.coordinator.core.events import RunPlan, RunSnapshot
from adamctl.roles.coordinator.core.group_book import GroupBook
from adamctl.roles.coordinator.core.hanging import HangWatch
from adamctl.roles.coordinator.core.lobby import Lobby
from adamctl.roles.coordinator.core.misfits import Misfits
from adamctl.roles.coordinator.core.pace import Pace
from adamctl.roles.coordinator.core.ranges import RangeAllocator
from adamctl.roles.coordinator.core.rounds import Rounds
from adamctl.roles.coordinator.core.steps import StepBarrier
from adamctl.roles.coordinator.core.work import TrainingWork, WorkerKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import NextTaskRequest

NO_LIMIT = 1 << 62
CHECKPOINT_RETRY_S = 5.0


@dataclass
class Worker:
    """A worker that has joined, or the lead of a group, which stands for the whole of it.

    `parked`: token of its waiting request, the request, and the latest time to answer it. `steps` counts those of the
    ranges it has reported. `next_step`: with replicas in step, the step that it waits for after it has done all its
    parts of earlier ones; 0 if it has not said. `starting`: the group is not ready, and what its members watch is their
    sign of life.
    """

    key: WorkerKey
    ranges_max: int
    heard_s: float
    parked: tuple[int, NextTaskRequest, float] | None = None
    told_drain: bool = False
    examples: int = 0
    steps: int = 0
    next_step: int = 0
    starting: bool = False
    status: dict[str, Any] = field(default_factory=dict)


@dataclass
class Ending:
    """Why and how the run ends: `reason` is `passes`, `target`, `patience`, `converged` (a batch algorithm stopped by
    itself), `stop`, or `misfit` if it has failed because a worker cannot be used.

    `checkpoint` is the number of the last one, 0 before it begins and after it has failed; it is retried at `retry_s`.
    """

    reason: str
    cause: str
    wait_until_s: float
    checkpoint_wanted: bool
    checkpoint: int = 0
    retry_s: float = -inf
    retries: int = 0
    give_up_s: float = inf

    @property
    def early(self) -> bool:
        """Whether the run is cut short: nothing is evaluated any more, and it can be resumed."""
        return self.reason in ("stop", "misfit")

    @property
    def final_state(self) -> str:
        return {"stop": "stopped", "misfit": "failed"}.get(self.reason, "ended")

    def put_off(self, now_s: float, patience_s: float) -> bool:
        """Schedules a retry of the failed last checkpoint; False after `patience_s` of retries, or after a stop."""
        if not self.retries:
            self.give_up_s = now_s + patience_s
        if self.reason == "stop" or now_s >= self.give_up_s:
            return False
        self.checkpoint, self.retries, self.retry_s = 0, self.retries + 1, now_s + CHECKPOINT_RETRY_S
        return True


class RunState:
    """The state of one run. Only `adamctl.roles.coordinator.core.run_core.RunCore` and its parts change it.

    Attributes:
        ready: servers and data are there, so that training may begin.
        evaluated: the last evaluation was of the parameters that the servers hold now.
        best_is_written: while False, a single replica waits, so that the best parameters are written as evaluated.
        warm_worker: the one that trains alone while the run is warming.
        joining: workers that came before the run was ready, and how long each is kept waiting.
        alone_since_s: since when no worker has been there, if none is.
        gather_until_s: with replicas in step, when steps may begin without those who have not joined.
        lobby, groups: where replicas have several partitions, the workers that wait for a group, and the groups;
            `workers` holds their leads.
        misfits: workers that the run cannot use.
        batch: the run's batch algorithm; None under the rules of Downpour, and before it is ready.
    """

    def __init__(self, plan: RunPlan, now_s: float) -> None:
        self.plan, self.now_s, self.started_s = plan, now_s, now_s
        self.workers: dict[WorkerKey, Worker] = {}
        self.tally, self.clock = RunStats(), TrainingClock()
        self.book = RangeAllocator(plan.passes, 1, 1, plan.pass_fraction)
        self.desk = EvaluationQueue(plan.evaluate_on, metric=plan.metric)
        self.ending: Ending | None = None
        self.final_state = ""
        self.cause = ""
        self.checkpoint_number = 0
        self.pace, self.steps = Pace(plan.max_staleness), StepBarrier(self.step_limit)
        self.hanging = HangWatch(plan.silent_after_s)
        self.set_up(0.0)
        self.ready = False
        self.trained_since_evaluation = False
        self.evaluated = False
        self.best_is_written = True
        self.warm_worker: WorkerKey | None = None
        self.joining: list[tuple[events.WorkerJoins, float]] = []
        self.alone_since_s = now_s
        self.gather_until_s = inf
        self.lobby, self.groups, self.misfits = Lobby(plan.partitions), GroupBook(), Misfits()
        self.batch: BatchJob | None = None

    def set_up(self, elapsed_before_s: float) -> None:
        """Sets up what depends on how many examples a pass has."""
        book = self.book
        self.work = TrainingWork(book, self.clock, self.tally)
        self.rounds = Rounds(self.work, self.plan.batch, self.plan.range_batches)
        self._elapsed_before_s = elapsed_before_s

    # --- what can be asked at any time ------------------------------------------------------------------------------

    @property
    def loses_parameters(self) -> bool:
        """Whether the loss of a replica now is that of parameters that something was trained into."""
        return self.plan.has_own_parameters and self.tally.examples > 0 and not self.final_state

    def members(self) -> list[str]:
        """Returns the nodes of all workers that are in a replica."""
        if self.plan.partitions == 1:
            return [node for node, _ in self.workers]
        return [member.told.node for group in self.groups.groups.values() for member in group.members]

    @property
    def state(self) -> str:
        if self.final_state:
            return self.final_state
        if not self.ready:
            return "starting"
        if self.desk.exclusive:
            return "evaluating"
        if self.ending is not None:
            return "finishing"
        return "warmstart" if self.warming else "training"

    @property
    def saves_its_end(self) -> bool:
        """Whether the last checkpoint has begun: what is reported from now on is not in it, and no longer counts."""
        return self.ending is not None and self.ending.checkpoint > 0

    def is_early(self, evaluation: Evaluation) -> bool:
        """Whether the training before an evaluation is not done yet: all outstanding ranges, or its passes."""
        if evaluation.exclusive:
            return self.clock.ranges_out > 0
        return self.ending is None and self.book.done < floor(evaluation.passes * self.book.examples)

    @property
    def elapsed_s(self) -> float:
        return self._elapsed_before_s + self.now_s - self.started_s

    @property
    def train_seconds(self) -> float:
        return self.clock.seconds(self.now_s)

    @property
    def passes_handed_out(self) -> float:
        return round(self.book.handed_out / self.book.examples, 6)

    @property
    def warming(self) -> bool:
        return self.tally.steps < self.plan.warmstart_steps

    @property
    def halted(self) -> bool:
        """Whether no training is handed out, while workers finish what they have."""
        return self.ending is not None or self.desk.exclusive or not self.best_is_written

    @property
    def can_be_saved(self) -> bool:
        """Whether a checkpoint can be written now: not in the middle of a batch algorithm's commit."""
        return self.batch is None or self.batch.commit is not None

    @property
    def gathered(self) -> bool:
        """Whether steps of all replicas may begin: all wanted replicas have joined, or the wait for them is over."""
        return self.now_s >= self.gather_until_s

    def step_limit(self, replica: WorkerKey) -> int:
        """Returns the last step that a replica may begin now: of its own, or of the run if replicas go in step."""
        if self.plan.in_step:
            return self.rounds.settled + 1
        bounded = self.plan.max_staleness is not None and not self.final_state
        return self.pace.limit(replica) if bounded else NO_LIMIT

    def wakeup_s(self) -> float:
        """Returns the clock reading at which a `Tick` is due unless another event comes first; inf for never."""
        if self.final_state or not self.ready:
            return min((until_s for _, until_s in self.joining), default=inf)
        times = [self.deadline_s(worker) for worker in self.workers.values()]
        times += self.steps.wakeup_s(), self.hanging.wakeup_s()
        times.append(self.lobby.wakeup_s(self.now_s, len(self.groups) < self.plan.workers))
        times.append(self.groups.wakeup_s(self.plan.silent_after_s, self.plan.group_ready_s))
        if self.now_s < self.gather_until_s:
            times.append(self.gather_until_s)
        if self.needs_worker:
            times.append(self.alone_since_s + self.plan.no_worker_s)
            times.append(self.misfits.due_s(self.alone_since_s))
        if self.ending is not None and (self.clock.ranges_out or not self.can_be_saved):
            times.append(self.ending.wait_until_s)
        if self.ending is not None and self.now_s < self.ending.retry_s:
            times.append(self.ending.retry_s)
        return min(times, default=inf)

    def holding(self) -> dict[WorkerKey, float]:
        """Returns the workers that have something others may be waiting for, and how many steps that is at most."""
        current, found = self.desk.current, {}
        range_steps = max(EVALUATION_RANGE_EXAMPLES / self.plan.batch, 1.0)
        for key, worker in self.workers.items():
            evaluates = current is not None and current.worker == key
            if self.plan.in_step:
                holds = bool(self.work.out(key)) and worker.next_step <= self.rounds.settled + 1
            else:
                holds = bool(self.work.out(key)) and self.pace.is_slowest(key)
            if holds or (evaluates and self.desk.exclusive):
                found[key] = range_steps if evaluates else 1.0
        return found

    def deadline_s(self, worker: Worker) -> float:
        if worker.starting:
            return inf
        return worker.parked[2] if worker.parked else worker.heard_s + self.plan.silent_after_s

    def refusal(self, worker: WorkerKey, group_epoch: int) -> tuple[ErrorCode, str] | None:
        """Returns the code and the reason why a worker gets no tasks and no steps; None if it takes part."""
        if self.plan.partitions > 1 and (text := self.groups.refusal(worker, group_epoch)):
            return ErrorCode.STALE_GROUP, text
        if worker in self.workers:
            return None
        text = f"worker {worker[0]} is not one of run {self.plan.job}, or was declared dead; join again"
        return ErrorCode.STALE_INCARNATION, text

    def snapshot(self) -> RunSnapshot:
        """Returns what is needed to resume the run from here."""
        tally = self.tally
        return RunSnapshot(
            passes=self.book.state(),
            pass_examples=self.book.examples,
            examples=tally.examples,
            duplicates=tally.duplicates,
            skipped=tally.skipped,
            steps=tally.steps,
            updates=tally.updates,
            train_seconds=self.train_seconds,
            elapsed_seconds=self.elapsed_s,
            compute_seconds=tally.compute_s,
            wait_seconds=tally.wait_s,
            staleness=list(tally.staleness),
            gradient_ages=list(tally.ages),
            evaluations=list(self.desk.results),
            evaluation_due=self.desk.due,
            checkpoint=self.checkpoint_number,
            evaluated=self.evaluated,
            batch=None if self.batch is None else self.batch.snapshot(),
        )

    @property
    def needs_worker(self) -> bool:
        return not self.workers and (self.ending is None or self.desk.current is not None)

    @property
    def everybody_told(self) -> bool:
        """Whether, after the end, all workers know of it or are gone."""
        return not self.workers and not self.groups.seats

    @property
    def end_text(self) -> str:
        return f"{self.final_state}: {self.cause}" if self.cause else self.final_state

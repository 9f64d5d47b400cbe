"""Cuts the ranges of tasks into batches for the threads and adds up their results (pure)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DamagedDataError
from adamctl.model.tally import added
from adamctl.wire.messages import EvaluateTask, TaskReport, TrainTask

Task = TrainTask | EvaluateTask
Floats = NDArray[np.float32]
Labels = NDArray[Any]


@dataclass(frozen=True)
class Cut:
    """Examples [start, stop) of a task's range, counted from its first; `progress` is for the schedule."""

    task: Task
    start: int
    stop: int
    progress: float


def cut(task: Task, batch: int) -> list[Cut]:
    """Returns the batches of a task in order; the last may be smaller."""
    count = task.stop - task.start
    cuts = []
    for start in range(0, count, batch):
        progress = 0.0
        if isinstance(task, TrainTask):
            progress = task.progress_start + (task.progress_stop - task.progress_start) * start / count
        cuts.append(Cut(task, start, min(start + batch, count), progress))
    return cuts


def fill(
    cuts: list[Cut], images: Floats, labels: Labels, there: NDArray[np.bool_] | None
) -> list[tuple[Cut, Floats, Labels]]:
    """Returns batches with their examples: of those that are `there` [n], all if that is None; none is empty."""
    batches = [(one, images[one.start : one.stop], labels[one.start : one.stop]) for one in cuts]
    if there is None or there.all():
        return batches
    kept = [(one, some[there[one.start : one.stop]], of[there[one.start : one.stop]]) for one, some, of in batches]
    return [batch for batch in kept if len(batch[2])]


def damaged_step(task: TrainTask) -> DamagedDataError:
    """Returns the error of a task with a batch of which every example is damaged, where others wait for its step."""
    return DamagedDataError(
        f"all examples of a batch of pass {task.pass_number + 1}, from example {task.start} on, are damaged, and "
        "replicas in step cannot pass over one; repair the data (the data servers' logs name the files)"
    )


def parts_of(examples: int, size: int) -> list[tuple[int, int]]:
    """Returns the first example of each part of a batch, of up to `size` examples, and the one after its last."""
    return [(start, min(start + size, examples)) for start in range(0, examples, size)]


@dataclass
class _Open:
    task: Task
    left: int
    examples: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    steps: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    skipped: int = 0
    sums: tuple[float, ...] = ()


@dataclass
class TaskLedger:
    """The tasks of a worker and how much of each is left.

    Attributes:
        shares: how many added steps make up one step of a whole batch; reports count the latter.
    """

    shares: int = 1
    _open: dict[int, _Open] = field(default_factory=dict)

    def begin(self, task: Task, batches: int, skipped: int = 0) -> TaskReport | None:
        """Takes a task; returns its report at once if it is empty.

        Args:
            batches: those with an example in them.
            skipped: examples of the task that are damaged and left out.
        """
        if batches == 0:
            return TaskReport(task.id, 0, 0.0, 0, skipped=skipped)
        self._open[task.id] = _Open(task, batches, skipped=skipped)
        return None

    def add(
        self, task: Task, examples: int, loss_sum: float, correct: int, compute_s: float, wait_s: float,
        sums: tuple[float, ...] = (),
    ) -> TaskReport | None:  # fmt: skip
        """Adds one finished batch; returns the report if it was the task's last."""
        entry = self._open[task.id]
        entry.left -= 1
        entry.examples += examples
        entry.loss_sum += loss_sum
        entry.correct += correct
        entry.steps += 1
        entry.compute_s += compute_s
        entry.wait_s += wait_s
        entry.sums = added(entry.sums, sums)
        if entry.left:
            return None
        del self._open[task.id]
        steps = -(-entry.steps // self.shares)
        return TaskReport(
            task.id,
            entry.examples,
            entry.loss_sum,
            entry.correct,
            steps,
            entry.compute_s,
            entry.wait_s,
            entry.skipped,
            entry.sums,
        )

    def __len__(self) -> int:
        return len(self._open)

    @property
    def training(self) -> int:
        """Open tasks that train."""
        return sum(isinstance(entry.task, TrainTask) for entry in self._open.values())


class Accruing(Protocol):
    """Where gradients accrue until they are pushed, each lot of them under the next number: `slots.SlotCore`."""

    @property
    def begun(self) -> int:
        """The number of the last that has begun."""

    @property
    def oldest_unanswered(self) -> int:
        """The number of the oldest that servers have not answered; one more than `begun` without one."""


class Reports:
    """Reports of tasks that are done. One of training may wait until servers have answered all of its gradients.

    A checkpoint may follow any report, and has to have what was learnt from all ranges that it counts, even if no other
    one ever ends.
    """

    def __init__(self, slots: Accruing | None) -> None:
        """`slots`: where gradients accrue, of which reports of training wait for the answers; None: none waits."""
        self._slots = slots
        self._waiting: deque[tuple[int, TaskReport]] = deque()
        self._ready: list[TaskReport] = []

    def add(self, task: Task, report: TaskReport) -> None:
        """A task is done; of training, its last gradient is in a slot that has begun."""
        if self._slots is not None and isinstance(task, TrainTask):
            self._waiting.append((self._slots.begun, report))
        else:
            self._ready.append(report)

    @property
    def due(self) -> bool:
        """Whether one is to be told."""
        if self._waiting and self._slots is not None:
            oldest = self._slots.oldest_unanswered
            while self._waiting and self._waiting[0][0] < oldest:
                self._ready.append(self._waiting.popleft()[1])
        return bool(self._ready)

    def take(self) -> tuple[TaskReport, ...]:
        """Returns those that are to be told, once."""
        taken, self._ready = tuple(self._ready) if self.due else (), []
        return taken

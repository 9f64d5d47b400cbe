"""One look at a held-out split, cut into ranges, and what a run's evaluations say together."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from adamctl.roles.coordinator.progress import EvaluationResult
from adamctl.wire.messages import TaskReport

EVALUATION_RANGE_EXAMPLES = 1000
TIME_TO = ("0.90", "0.95", "0.97", "0.98", "0.985", "0.99", "0.993")


class Evaluation:
    """One evaluation by one worker from one snapshot of the parameters.

    `exclusive`: nothing is trained meanwhile. `worker` is who does it, None until somebody has begun. Moments
    (`train_seconds`, `progress`) are those of the beginning, when the parameters are pulled.
    """

    def __init__(self, number: int, passes: float, examples: int, exclusive: bool) -> None:
        self.number = number
        self.passes = passes
        self.examples = examples
        self.exclusive = exclusive
        self.begin()

    def begin(self, worker: tuple[str, int] | None = None, train_seconds: float = 0.0, progress: float = 0.0) -> None:
        """Starts, or starts again: without a worker if the one who had it died."""
        self.worker = worker
        self.train_seconds = train_seconds
        self.progress = progress
        step = EVALUATION_RANGE_EXAMPLES
        self.left = [(at, min(at + step, self.examples)) for at in range(0, self.examples, step)]
        self.seen = 0
        self.correct = 0
        self.loss_sum = 0.0

    def take(self) -> tuple[int, int] | None:
        return self.left.pop(0) if self.left else None

    def report(self, start: int, stop: int, report: TaskReport) -> None:
        self.seen += stop - start
        self.correct += report.correct
        self.loss_sum += report.loss_sum

    @property
    def done(self) -> bool:
        return self.seen == self.examples

    def result(self, split: str) -> EvaluationResult:
        """Returns top-1 as a share and the mean loss per example."""
        return EvaluationResult(
            passes=self.passes,
            progress=self.progress,
            train_seconds=self.train_seconds,
            split=split,
            top1=self.correct / self.examples,
            loss=self.loss_sum / self.examples,
        )


class Marks:
    """Points of a run, `every` passes apart, at which something is due. The end itself is not among them."""

    def __init__(self, every_passes: float, pass_examples: int, examples_total: int, next_index: int = 1) -> None:
        self.every_passes = every_passes
        self.pass_examples = pass_examples
        self.examples_total = examples_total
        self.next_index = next_index

    def _position(self, index: int) -> int:
        return ceil(index * self.every_passes * self.pass_examples - 1e-6)

    def reached(self, handed_out: int) -> float | None:
        """Returns the latest mark reached since the last call, in passes, or None; missed ones fold into it."""
        if self.every_passes <= 0:
            return None
        found = None
        while (position := self._position(self.next_index)) <= handed_out and position < self.examples_total:
            found = round(self.next_index * self.every_passes, 6)
            self.next_index += 1
        return found


def time_to(evaluations: Sequence[EvaluationResult], target: float | None) -> dict[str, float]:
    """Returns accuracy -> seconds of training at the first evaluation that reached it; the ones not reached are absent."""
    wanted = list(TIME_TO)
    if target is not None and not any(float(name) == target for name in wanted):
        wanted.append(f"{target:g}")
    reached: dict[str, float] = {}
    for name in sorted(wanted, key=float):
        first = next((e.train_seconds for e in evaluations if e.top1 >= float(name)), None)
        if first is not None:
            reached[name] = first
    return reached

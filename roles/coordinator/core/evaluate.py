"""One evaluation on a held-out split, cut into ranges, and what the evaluations of a run tell together."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from adamctl.model.metric import TOP_1, Metric, reaches
from adamctl.model.tally import Tally, added
from adamctl.roles.coordinator.core.events import RunPlan
from adamctl.roles.coordinator.core.progress import EvaluationResult, mean_loss
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import EvaluateTask, TaskReport

EVALUATION_RANGE_EXAMPLES = 1000
TIME_TO = ("0.90", "0.95", "0.97", "0.98", "0.985", "0.99", "0.993")


class Evaluation:
    """One evaluation, by one worker, on one snapshot of the parameters.

    `exclusive`: nothing is trained meanwhile. `worker` is the worker that does it, None until one has begun.
    `train_seconds` and `progress` are those of its beginning, when the parameters are pulled.
    """

    def __init__(self, passes: float, examples: int, exclusive: bool) -> None:
        self.passes, self.examples, self.exclusive = passes, examples, exclusive
        self.number = 0
        self.begin(None, 0.0, 0.0)

    def begin(self, worker: WorkerKey | None, train_seconds: float, progress: float) -> None:
        """Starts or restarts; `worker` is None after its worker has died."""
        self.worker, self.train_seconds, self.progress = worker, train_seconds, progress
        step = EVALUATION_RANGE_EXAMPLES
        self.left = [(at, min(at + step, self.examples)) for at in range(0, self.examples, step)]
        self.out: dict[int, int] = {}
        self.seen = self.correct = self.skipped = 0
        self.loss_sum = 0.0
        self.sums: tuple[float, ...] = ()

    def result(self, split: str, metric: Metric) -> EvaluationResult:
        """Returns the metric, of no example that of nothing, and the mean loss per example, of no example None."""
        examples = self.examples - self.skipped
        value = metric.value(Tally(examples, self.loss_sum, self.correct, self.sums))
        return EvaluationResult(
            passes=self.passes,
            progress=self.progress,
            train_seconds=self.train_seconds,
            split=split,
            top1=value if metric is TOP_1 else None,
            loss=mean_loss(self.loss_sum, examples),
            skipped=self.skipped,
            metric=metric.name,
            metric_value=value,
            larger_is_better=metric.larger_is_better,
        )


class EvaluationQueue:
    """The evaluations of a run: at most one at a time; `due` is the mark that the current one was ordered for."""

    def __init__(self, split: str, examples: int = 0, metric: Metric = TOP_1) -> None:
        self.split, self.examples, self.metric = split, examples, metric
        self.results: list[EvaluationResult] = []
        self.current: Evaluation | None = None
        self.due: float | None = None
        self._number = 0

    @property
    def exclusive(self) -> bool:
        return self.current is not None and self.current.exclusive

    def order(self, passes: float, exclusive: bool, due: float | None = None) -> None:
        """Orders an evaluation; `due` is None for the last one of a run, which a resumed run orders again if needed."""
        assert self.current is None and self.examples > 0
        self.current, self.due = Evaluation(passes, self.examples, exclusive), due

    def cancel(self) -> None:
        """Drops the current one; `due` stays, so that a resumed run catches up on it."""
        self.current = None

    def is_with(self, worker: WorkerKey) -> bool:
        """Whether this worker has the current evaluation, with ranges left to hand out."""
        return self.current is not None and self.current.worker == worker and bool(self.current.left)

    def begin(self, worker: WorkerKey, train_seconds: float, progress: float) -> None:
        assert self.current is not None
        self._number += 1
        self.current.begin(worker, train_seconds, progress)
        self.current.number = self._number

    def take(self, task_id: int) -> EvaluateTask:
        """Hands the next range to the worker that has the evaluation; call it only while `is_with` holds."""
        assert self.current is not None
        start, stop = self.current.left.pop(0)
        self.current.out[task_id] = stop - start
        return EvaluateTask(task_id, self.current.number, self.split, start, stop)

    def report(self, worker: WorkerKey, report: TaskReport) -> EvaluationResult | None:
        """Notes a finished range; returns the result with the last one. Ignores ranges of other evaluations."""
        current = self.current
        if current is None or current.worker != worker or report.id not in current.out:
            return None
        examples = current.out.pop(report.id)
        current.seen += examples
        current.correct += report.correct
        current.skipped += min(report.skipped, examples)
        current.loss_sum += report.loss_sum
        current.sums = added(current.sums, report.sums)
        if current.seen < current.examples:
            return None
        self.current = self.due = None
        self.results.append(current.result(self.split, self.metric))
        return self.results[-1]

    def lose(self, worker: WorkerKey) -> None:
        """The worker is dead: another one starts over, since the parameters have changed."""
        if self.current is not None and self.current.worker == worker:
            self.current.begin(None, 0.0, 0.0)


def best_of(results: Sequence[EvaluationResult]) -> int | None:
    """Returns the index of the best result, by its metric, then by loss, then the earliest; None if there are none."""
    return max(range(len(results)), key=lambda index: (*merit(results[index]), -index), default=None)


def merit(result: EvaluationResult) -> tuple[float, float]:
    """Returns the key that results are compared by; a value or loss that is not finite is the worst."""
    value = -inf if result.value is None else result.value if result.larger_is_better else -result.value
    return value, -inf if result.loss is None else -result.loss


def enough_seen(plan: RunPlan, results: Sequence[EvaluationResult]) -> tuple[str, str] | None:
    """Returns why a run can end after the last of these results (reason, cause in words); None if it cannot."""
    if plan.target is not None and reaches(results[-1].value, plan.target, results[-1].larger_is_better):
        return "target", f"target {plan.target:g} reached"
    best = best_of(results)
    if plan.patience is None or best is None or len(results) - 1 - best < plan.patience:
        return None
    value = "not finite" if results[best].value is None else f"{results[best].value:.4f}"
    seen = f"{results[best].metric} {value} after pass {results[best].passes:g}"
    worse = f"in {len(results) - 1 - best} evaluations (train.patience)"
    return "patience", f"no better {plan.evaluate_on} result than {seen} {worse}"


class Marks:
    """Points of a run, `every` passes apart, at which something is due. Excludes the end."""

    def __init__(self, every_passes: float, pass_examples: int, examples_total: int, next_index: int = 1) -> None:
        self.every_passes = every_passes
        self.pass_examples = pass_examples
        self.examples_total = examples_total
        self.next_index = next_index

    def _position(self, index: int) -> int:
        return ceil(index * self.every_passes * self.pass_examples - 1e-6)

    def reached(self, handed_out: int) -> float | None:
        """Returns the latest mark reached since the last call, in passes, or None; earlier missed marks are dropped."""
        if self.every_passes <= 0:
            return None
        found = None
        while (position := self._position(self.next_index)) <= handed_out and position < self.examples_total:
            found = round(self.next_index * self.every_passes, 6)
            self.next_index += 1
        return found


def time_to(evaluations: Sequence[EvaluationResult], target: float | None) -> dict[str, float]:
    """Returns accuracy -> training seconds of the first evaluation that reached it, for the accuracies reached.

    Of another metric than top-1, only the target's.
    """
    wanted = list(TIME_TO) if all(one.metric == TOP_1.name for one in evaluations) else []
    if target is not None and not any(float(name) == target for name in wanted):
        wanted.append(f"{target:g}")
    reached: dict[str, float] = {}
    for name in sorted(wanted, key=float):
        first = next((e.train_seconds for e in evaluations if reaches(e.value, float(name), e.larger_is_better)), None)
        if first is not None:
            reached[name] = first
    return reached

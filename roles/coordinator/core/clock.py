"""The training clock, and the sums over workers' reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.coordinator.core.progress import mean_loss
from adamctl.wire.messages import NextTaskRequest, TaskReport

RECENT_REPORTS = 32


class TrainingClock:
    """Seconds during which at least one training range was with a worker: the union of those intervals."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._out = 0
        self._since_s = 0.0

    @property
    def ranges_out(self) -> int:
        return self._out

    def hand_out(self, now_s: float) -> None:
        if self._out == 0:
            self._since_s = now_s
        self._out += 1

    def take_back(self, now_s: float) -> None:
        """Notes that a range was reported, or that its worker is lost."""
        assert self._out > 0, "a range came back that was not out"
        self._out -= 1
        if self._out == 0:
            self._seconds += now_s - self._since_s

    def seconds(self, now_s: float) -> float:
        return self._seconds + (now_s - self._since_s if self._out else 0.0)


class RunStats:
    """Sums over reports. `staleness[i]` counts pushes of staleness i (the last entry: or more); `ages` likewise."""

    def __init__(self) -> None:
        self.examples = 0
        self.duplicates = 0
        self.skipped = 0
        self.steps = 0
        self.updates = 0
        self.compute_s = 0.0
        self.wait_s = 0.0
        self.staleness: list[int] = []
        self.ages: list[int] = []
        self._recent: deque[tuple[int, float, int]] = deque(maxlen=RECENT_REPORTS)

    def restore(self, snapshot: RunSnapshot) -> None:
        """Goes on counting from a checkpoint."""
        self.examples, self.duplicates, self.skipped = snapshot.examples, snapshot.duplicates, snapshot.skipped
        self.steps, self.updates = snapshot.steps, snapshot.updates
        self.compute_s, self.wait_s = snapshot.compute_seconds, snapshot.wait_seconds
        self.staleness, self.ages = list(snapshot.staleness), list(snapshot.gradient_ages)

    def add_request(self, request: NextTaskRequest) -> None:
        self.updates += request.updates
        for counts, reported in ((self.staleness, request.staleness), (self.ages, request.gradient_ages)):
            counts += [0] * (len(reported) - len(counts))
            for index, count in enumerate(reported):
                counts[index] += count

    def add_report(self, report: TaskReport, examples: int, skipped: int, progress: bool) -> None:
        """Adds a report of a range. `progress` is False if another worker had already done the range."""
        self.compute_s += report.compute_s
        self.wait_s += report.wait_s
        self.steps += report.steps
        if progress:
            self.examples += examples
            self.skipped += skipped
            self._recent.append((report.examples, report.loss_sum, report.correct))
        else:
            self.duplicates += examples

    @property
    def recent_loss(self) -> float | None:
        """Mean loss over the last reports; None before the first one and if it is not finite."""
        return mean_loss(sum(loss for _, loss, _ in self._recent), self._recent_examples)

    @property
    def recent_top1(self) -> float | None:
        """Share of the training examples of the last reports that were classified correctly; None before the first."""
        correct = sum(correct for _, _, correct in self._recent)
        return correct / self._recent_examples if self._recent_examples else None

    @property
    def _recent_examples(self) -> int:
        return sum(count for count, _, _ in self._recent)

    @property
    def waiting_share(self) -> float:
        whole_s = self.compute_s + self.wait_s
        return self.wait_s / whole_s if whole_s else 0.0

    def staleness_at(self, share: float) -> int | None:
        return histogram_quantile(self.staleness, share)

    def age_at(self, share: float) -> int | None:
        return histogram_quantile(self.ages, share)


def histogram_quantile(counts: Sequence[int], share: float) -> int | None:
    """Returns the smallest index at or below which at least `share` of all counts lie; None if there are no counts."""
    total, seen = sum(counts), 0
    for index, count in enumerate(counts):
        seen += count
        if total and seen >= share * total:
            return index
    return None

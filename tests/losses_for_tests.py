"""Losses as users write them, each in a few lines, and faulty ones, one fault each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

import adamctl as adam


class Absolute(adam.Loss):
    """The mean of the absolute differences from targets; the metric is the share that is off by more than 1."""

    metric_name = "far"

    def evaluate(self, outputs: Any, targets: Any) -> Any:
        return np.abs(outputs - targets).mean(axis=1)

    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        out[...] = np.sign(outputs - targets) / outputs.size

    def measure(self, outputs: Any, targets: Any) -> Sequence[float]:
        return float((np.abs(outputs - targets) > 1).sum()), float(outputs.size)

    def metric(self, tally: Any) -> float:
        return float(tally.sums[0] / tally.sums[1])


class Margin(adam.Loss):
    """The largest output of another class must stay 1 below that of the label; the metric is the share where it is."""

    answers: ClassVar[Any] = "labels"
    metric_name = "kept"
    larger_is_better = True

    def _gaps(self, outputs: Any, labels: Any) -> tuple[Any, Any]:
        rows, others = np.arange(len(labels)), outputs.copy()
        others[rows, labels] = -np.inf
        return 1 + others.max(axis=1) - outputs[rows, labels], others.argmax(axis=1)

    def evaluate(self, outputs: Any, labels: Any) -> Any:
        return np.maximum(self._gaps(outputs, labels)[0], 0)

    def error(self, outputs: Any, labels: Any, out: Any) -> None:
        gaps, others = self._gaps(outputs, labels)
        share, rows = (gaps > 0) / len(labels), np.arange(len(labels))
        out[...] = 0
        out[rows, others] = share
        out[rows, labels] = -share

    def measure(self, outputs: Any, labels: Any) -> Sequence[float]:
        return float((self._gaps(outputs, labels)[0] <= 0).sum()), float(len(labels))

    def metric(self, tally: Any) -> float:
        return float(tally.sums[0] / tally.sums[1])


class Half(Absolute):
    """Its derivative is of another loss."""

    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        out[...] = 0.5 * np.sign(outputs - targets) / outputs.size


class PartWritten(Absolute):
    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        out[:, 1:] = (np.sign(outputs - targets) / outputs.size)[:, 1:]


class OfTheBatch(Absolute):
    def evaluate(self, outputs: Any, targets: Any) -> Any:
        return np.full(len(outputs), np.abs(outputs - targets).mean())


class OneNumber(Absolute):
    def evaluate(self, outputs: Any, targets: Any) -> Any:
        return np.abs(outputs - targets).mean()


class Writes(Absolute):
    def evaluate(self, outputs: Any, targets: Any) -> Any:
        outputs -= targets
        return np.abs(outputs).mean(axis=1)


class Remembers(Absolute):
    def __init__(self) -> None:
        self.seen = 0

    def evaluate(self, outputs: Any, targets: Any) -> Any:
        self.seen += 1
        return np.abs(outputs - targets).mean(axis=1) + self.seen


class Means(Absolute):
    """What it measures are no sums."""

    def measure(self, outputs: Any, targets: Any) -> Sequence[float]:
        return float((np.abs(outputs - targets) > 1).mean()), 1.0


class Endless(Absolute):
    def evaluate(self, outputs: Any, targets: Any) -> Any:
        return np.where(np.arange(len(outputs)) == 2, np.inf, np.abs(outputs - targets).mean(axis=1))


class NoLoss:
    """Not derived from `adam.Loss`."""


class Needs(Absolute):
    def __init__(self, width: float) -> None:
        self.width = width


class Fails(Absolute):
    """Every method but those of a step fails; `measure` after its first call has one number more."""

    def __init__(self) -> None:
        self.calls = 0

    def measure(self, outputs: Any, targets: Any) -> Sequence[float]:
        self.calls += 1
        return (1.0,) * self.calls

    def metric(self, tally: Any) -> float:
        return tally.sums["missing"]  # type: ignore[no-any-return]

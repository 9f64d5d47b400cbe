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


class LabelTypes(Margin):
    """Takes labels of the type that the documents name, and no other."""

    def _gaps(self, outputs: Any, labels: Any) -> tuple[Any, Any]:
        assert labels.dtype == np.int32, labels.dtype
        return super()._gaps(outputs, labels)


@adam.kernel("void(float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[::1])")
def absolute(outputs: Any, targets: Any, out: Any, losses: Any) -> None:
    for row in range(outputs.shape[0]):
        losses[row] = 0
        for unit in range(outputs.shape[1]):
            away = outputs[row, unit] - targets[row, unit]
            losses[row] += abs(away) / outputs.shape[1]
            out[row, unit] = np.sign(away) / outputs.size


class NativeAbsolute(Absolute):
    """As `Absolute`, compiled."""

    def native_error(self, outputs: Any, targets: Any, out: Any, losses: Any) -> Any:
        return [adam.call(absolute, outputs, targets, out, losses)]


@adam.kernel("void(float32[:, ::1], int32[::1], float32[:, ::1], float32[::1])")
def margin(outputs: Any, labels: Any, out: Any, losses: Any) -> None:
    share = np.float32(1 / max(outputs.shape[0], 1))
    for row in range(outputs.shape[0]):
        label, other = labels[row], 1 if labels[row] == 0 else 0
        for unit in range(outputs.shape[1]):
            out[row, unit] = 0
            if unit != label and outputs[row, unit] > outputs[row, other]:
                other = unit
        losses[row] = max(1 + outputs[row, other] - outputs[row, label], np.float32(0))
        if losses[row] > 0:
            out[row, other], out[row, label] = share, -share


class NativeMargin(Margin):
    """As `Margin`, compiled."""

    def native_error(self, outputs: Any, labels: Any, out: Any, losses: Any) -> Any:
        return [adam.call(margin, outputs, labels, out, losses)]


class OnlyNative(NativeAbsolute):
    """Numpy has no derivative of it."""

    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        raise AssertionError("numpy is not needed")


@adam.kernel("void(float32[:, ::1], int64, int64)")
def double(values: Any, row: Any, unit: Any) -> None:
    values[row, unit] *= 2


class NativeTwice(NativeAbsolute):
    """One element of its compiled derivative is wrong."""

    def native_error(self, outputs: Any, targets: Any, out: Any, losses: Any) -> Any:
        return [adam.call(absolute, outputs, targets, out, losses), adam.call(double, out, 1, 2)]


class NativePartWritten(NativeAbsolute):
    """Compiled, it writes the first examples alone."""

    def native_error(self, outputs: Any, targets: Any, out: Any, losses: Any) -> Any:
        return [adam.call(absolute, outputs[:3], targets[:3], out[:3], losses[:3])]


class NativeWrites(NativeAbsolute):
    def native_error(self, outputs: Any, targets: Any, out: Any, losses: Any) -> Any:
        return [adam.call(absolute, outputs, targets, out, losses), adam.call(double, outputs, 0, 1)]


class NativeMisfit(NativeAbsolute):
    """Its kernel takes other arguments."""

    def native_error(self, outputs: Any, targets: Any, out: Any, losses: Any) -> Any:
        return [adam.call(absolute, outputs, targets, losses)]


class NoCalls(NativeAbsolute):
    def native_error(self, outputs: Any, targets: Any, out: Any, losses: Any) -> Any:
        return absolute


class Half(Absolute):
    """Its derivative is of another loss."""

    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        out[...] = 0.5 * np.sign(outputs - targets) / outputs.size


class PartWritten(Absolute):
    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        out[:, 1:] = (np.sign(outputs - targets) / outputs.size)[:, 1:]


class Returned(Absolute):
    """Its derivative is returned, not written."""

    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        return np.sign(outputs - targets) / outputs.size  # type: ignore[no-any-return]


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


class Logarithms(adam.Loss):
    """Squared differences of logarithms, of numbers above 0 alone."""

    def _away(self, outputs: Any, targets: Any) -> Any:
        if outputs.min() <= 0:
            raise ValueError("expected outputs above 0")
        return np.log(outputs) - np.log(targets)

    def evaluate(self, outputs: Any, targets: Any) -> Any:
        return np.square(self._away(outputs, targets)).sum(axis=1)

    def error(self, outputs: Any, targets: Any, out: Any) -> None:
        out[...] = 2 * self._away(outputs, targets) / outputs / len(outputs)


class Texts(Absolute):
    def evaluate(self, outputs: Any, targets: Any) -> Any:
        return np.full(len(outputs), "few")


class OfNothing(Absolute):
    def measure(self, outputs: Any, targets: Any) -> Any:
        return None


class OneSum(Absolute):
    def measure(self, outputs: Any, targets: Any) -> Any:
        return float(outputs.size)


class NoValue(Absolute):
    def metric(self, tally: Any) -> Any:
        return None


class FinishesInPlace(Absolute):
    """It forgets to return."""

    def finish(self, outputs: Any) -> Any:
        outputs *= 2


class FinishesAll(Absolute):
    """It makes one row of all examples."""

    def finish(self, outputs: Any) -> Any:
        return outputs.mean(axis=0, keepdims=True)


class RealTargets(Absolute):
    def target_numbers(self, units: int) -> Any:
        return float(units)


class NumpyTargets(Absolute):
    def target_numbers(self, units: int) -> Any:
        return np.int64(units)


class NoTargets(Absolute):
    def target_numbers(self, units: int) -> int:
        return 0

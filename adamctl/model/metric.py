"""What a model is judged by, besides its loss: a number made of sums over the examples of a split.

Sums over batches, ranges and workers add up, values such as roots and ratios do not: so a value is made once, of all
sums (docs/decisions/0048).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Final

from adamctl.errors import CustomError
from adamctl.model.custom.asking import ask
from adamctl.model.custom.loss import custom_loss, is_custom_loss, target_numbers_of
from adamctl.model.description import Model
from adamctl.model.tally import Tally

TARGET_LOSSES: Final = frozenset({"mean_squared_error"})
"""Losses that compare outputs with targets, float32 [n, k], in place of labels."""


@dataclass(frozen=True)
class Metric:
    """A metric of evaluations.

    Attributes:
        name: for people and records.
        make: its value, from the sums over at least one example.
    """

    name: str
    larger_is_better: bool
    make: Callable[[Tally], float]

    def value(self, tally: Tally) -> float | None:
        """Returns its value; None of no examples, or where it is not finite, which JSON cannot express."""
        found = float(self.make(tally)) if tally.examples and isfinite(tally.loss_sum) else nan
        return found if isfinite(found) else None


class _Top1(Metric):
    def value(self, tally: Tally) -> float:
        """Returns the share; it is 0 of no examples. A loss that has diverged does not matter."""
        return self.make(tally)


TOP_1: Final = _Top1("top-1", True, lambda tally: tally.correct / max(tally.examples, 1))
"""The share of the examples that have their largest output at their label."""
RMSE: Final = Metric("rmse", False, lambda tally: sqrt(tally.loss_sum / tally.examples))
"""The root of the mean squared error: in the units of the targets."""


def takes_targets(model: Model) -> bool:
    """Whether a model is trained on targets, numbers to come close to, in place of labels.

    This and the following raise ConfigurationError where a loss of one's own cannot be imported, and CustomError where
    it answers with something else.
    """
    return custom_loss(model.loss).answers == "targets" if is_custom_loss(model.loss) else model.loss in TARGET_LOSSES


def target_numbers(model: Model, units: int) -> int:
    """Returns how many numbers the target of an example has where the last layer has so many units."""
    return target_numbers_of(custom_loss(model.loss), units) if is_custom_loss(model.loss) else units


def metric_of(model: Model) -> Metric:
    """Returns what a model is judged by."""
    if is_custom_loss(model.loss):
        own = custom_loss(model.loss)
        where = f"{type(own).__name__}.metric"
        return Metric(
            own.metric_name, own.larger_is_better, lambda tally: _number(where, ask(where, own.metric, tally))
        )
    return RMSE if takes_targets(model) else TOP_1


def _number(where: str, found: object) -> float:
    try:
        return float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise CustomError(f"{where}: expected a number; found {found!r:.80}") from None


def value_of(metric: str, top1: float | None, value: float | None) -> float | None:
    """Returns the metric's value in a record that also has top-1: earlier versions wrote and told that alone."""
    return top1 if metric == TOP_1.name else value


def reaches(value: float | None, target: float, larger_is_better: bool) -> bool:
    """Whether a metric's value is as good as a target; None is not."""
    if value is None:
        return False
    return value >= target if larger_is_better else value <= target

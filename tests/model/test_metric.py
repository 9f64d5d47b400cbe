"""Metrics: values of sums, what has none, and when a target is reached."""

from __future__ import annotations

import pytest

from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.metric import RMSE, TOP_1, metric_of, reaches, takes_targets
from adamctl.model.tally import Tally

REGRESSION = Model((2,), (Dense(1),), "mean_squared_error")
CLASSES = Model((2,), (Softmax(2),))


def test_the_loss_says_what_a_model_is_judged_by() -> None:
    assert (metric_of(CLASSES), takes_targets(CLASSES)) == (TOP_1, False)
    assert (metric_of(REGRESSION), takes_targets(REGRESSION)) == (RMSE, True)


def test_a_value_is_made_of_all_sums_at_once() -> None:
    """The mean of the roots of two halves would be 1.5."""
    assert RMSE.value(Tally(4, 10.0)) == pytest.approx(2.5**0.5)
    assert TOP_1.value(Tally(4, 9.0, 3)) == 0.75


@pytest.mark.parametrize("tally", [Tally(0, 0.0), Tally(3, float("nan")), Tally(3, float("inf"))])
def test_what_is_not_finite_is_none(tally: Tally) -> None:
    assert RMSE.value(tally) is None
    assert TOP_1.value(tally) == 0.0, "a share is there, whatever the loss"


@pytest.mark.parametrize(
    ("value", "larger", "reached"), [(0.9, True, True), (0.7, True, False), (0.7, False, True), (0.9, False, False)]
)
def test_a_target_is_reached_in_the_direction_of_the_metric(value: float, larger: bool, reached: bool) -> None:
    assert reaches(value, 0.8, larger) is reached and reaches(0.8, 0.8, larger) and not reaches(None, 0.8, larger)

"""Metrics: values of sums, what has none, and when a target is reached."""

from __future__ import annotations

import pytest

from adamctl.errors import CustomError
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.metric import RMSE, TOP_1, metric_of, reaches, takes_targets, target_numbers
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


def test_a_loss_that_answers_with_something_else_is_named_with_its_method() -> None:
    with pytest.raises(CustomError, match=r"^RealTargets\.target_numbers: expected a whole number of at least 1"):
        target_numbers(Model((2,), (Dense(1),), "tests.losses_for_tests:RealTargets"), 1)
    with pytest.raises(CustomError, match=r"^NoValue\.metric: expected a number; found None"):
        metric_of(Model((2,), (Dense(1),), "tests.losses_for_tests:NoValue")).value(Tally(4, 1.0))


@pytest.mark.parametrize("tally", [Tally(0, 0.0), Tally(3, float("nan")), Tally(3, float("inf"))])
def test_what_is_not_finite_is_none(tally: Tally) -> None:
    assert RMSE.value(tally) is None
    assert TOP_1.value(tally) == 0.0, "a share is there, whatever the loss"


@pytest.mark.parametrize(
    ("value", "larger", "reached"), [(0.9, True, True), (0.7, True, False), (0.7, False, True), (0.9, False, False)]
)
def test_a_target_is_reached_in_the_direction_of_the_metric(value: float, larger: bool, reached: bool) -> None:
    assert reaches(value, 0.8, larger) is reached and reaches(0.8, 0.8, larger) and not reaches(None, 0.8, larger)

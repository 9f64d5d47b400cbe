"""What a user wrote and fails is told with its own file and line."""

from __future__ import annotations

import inspect

import pytest

from adamctl.errors import CustomError
from adamctl.model.custom.asking import ask
from adamctl.model.description import Dense, Model
from adamctl.model.metric import metric_of
from adamctl.model.tally import Tally, added
from tests.losses_for_tests import Fails


def test_the_line_that_failed_is_told() -> None:
    assert ask("Sum", sum, (1, 2)) == 3
    line = inspect.getsourcelines(Fails.metric)[1] + 1
    metric = metric_of(Model((3,), (Dense(2),), "tests.losses_for_tests:Fails"))
    with pytest.raises(CustomError, match=rf"^Fails.metric: TypeError: .*losses_for_tests\.py:{line}\)$"):
        metric.value(Tally(4, 1.0, 0, (3.0,)))


def test_sums_of_different_lengths_end_a_run_in_words() -> None:
    assert added((1.0,), ()) == (1.0,) and added((1.0,), (2.0,)) == (3.0,)
    with pytest.raises(CustomError, match="expected as many from everybody; found 1 and 2"):
        added((1.0,), (1.0, 2.0))

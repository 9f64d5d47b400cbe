"""What a user wrote and fails is told with its own file and line."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
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


def shaped(numbers: Any) -> Any:
    return np.reshape(numbers, (3, 3))


def test_what_fails_in_a_library_is_told_with_the_line_of_the_users_file_that_called_it() -> None:
    line = inspect.getsourcelines(shaped)[1] + 1
    for method in (shaped, np.errstate(all="ignore")(shaped)):
        with pytest.raises(CustomError, match=rf"^Own.upward: ValueError: .*test_asking\.py:{line}\)$"):
            ask("Own.upward", method, np.arange(4))


def test_a_method_with_other_arguments_is_told_with_the_line_of_its_definition() -> None:
    line = inspect.getsourcelines(shaped)[1]
    with pytest.raises(CustomError, match=rf"takes 1 positional argument .*test_asking\.py:{line}\)$"):
        ask("Own.upward", shaped, 1, 2)
    with pytest.raises(CustomError, match=r"^Sum: TypeError: .*not iterable \(.*\.py:\d+\)$"):
        ask("Sum", sum, 1)


def test_sums_of_different_lengths_end_a_run_in_words() -> None:
    assert added((1.0,), ()) == (1.0,) and added((1.0,), (2.0,)) == (3.0,)
    with pytest.raises(CustomError, match="expected as many from everybody; found 1 and 2"):
        added((1.0,), (1.0, 2.0))

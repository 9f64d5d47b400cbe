"""What `[data]` cannot say, and what is said of it."""

from __future__ import annotations

import pytest

from adamctl.config.data import DataConfig
from adamctl.config.data_conflicts import data_problems


@pytest.mark.parametrize(
    ("data", "key", "said"),
    [
        (DataConfig(format="digits", source="mnist"), "format", 'found "digits" with source = "mnist"'),
        (DataConfig(format="idx", source="digits"), "source", "needs a path or a name"),
        (DataConfig(format="idx", source=""), "source", "needs a path or a name"),
        (DataConfig(stratify=True), "stratify", "found true but data.validation is 0; set data.validation"),
        (DataConfig(sampling={}), "sampling", 'found an empty table; give classes weights, or set it to "all"'),
        (DataConfig(translate=4), "translate", "expected less than half of the images' height and width, 8 x 8"),
    ],
)
def test_conflicts(data: DataConfig, key: str, said: str) -> None:
    (problem,) = data_problems(data, (8, 8, 1))
    assert problem.path == ("data", key)
    assert said in problem.message


def test_a_weight_below_zero_is_named() -> None:
    (problem,) = data_problems(DataConfig(sampling={"cat": 1.0, "dog": -2.0}), (8, 8, 1))
    assert str(problem) == "data.sampling.dog: found -2.0; expected a weight of at least 0"


def test_only_images_move() -> None:
    (problem,) = data_problems(DataConfig(translate=1), (64,))
    assert problem.path == ("data", "translate")
    assert "it moves images" in problem.message


def test_none() -> None:
    assert not data_problems(DataConfig(translate=3), (8, 8, 1))
    assert not data_problems(DataConfig(format="idx", source="mnist"), (28, 28, 1))

"""Losses of one's own are imported by name; what cannot be imported is refused with what to do."""

from __future__ import annotations

import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError
from adamctl.model.custom.loss import custom_loss, name_of
from adamctl.model.description import Dense, Model
from adamctl.model.metric import metric_of, takes_targets, target_numbers
from adamctl.model.shapes import infer
from adamctl.model.tally import Tally
from tests import losses_for_tests as losses

ABSOLUTE = "tests.losses_for_tests:Absolute"


def test_a_class_an_object_and_a_name_are_one() -> None:
    assert name_of(losses.Absolute) == name_of(losses.Absolute()) == name_of(ABSOLUTE) == ABSOLUTE
    assert type(custom_loss(ABSOLUTE)) is losses.Absolute and custom_loss(ABSOLUTE) is custom_loss(ABSOLUTE)
    assert adam.Sequential([Dense(2)], (3,), losses.Absolute).loss == ABSOLUTE


def test_its_class_says_what_it_takes_and_what_models_are_judged_by() -> None:
    regression, classes = (Model((3,), (Dense(2),), f"tests.losses_for_tests:{one}") for one in ("Absolute", "Margin"))
    assert (takes_targets(regression), takes_targets(classes), target_numbers(regression, 2)) == (True, False, 2)
    far, kept = metric_of(regression), metric_of(classes)
    assert (far.name, far.larger_is_better, kept.name, kept.larger_is_better) == ("far", False, "kept", True)
    assert kept.value(Tally(4, 1.0, 0, (3.0, 4.0))) == 0.75


def test_without_a_metric_of_its_own_it_is_the_mean_loss() -> None:
    class Plain(losses.Absolute):
        metric_name = "loss"
        metric = adam.Loss.metric

    assert Plain().metric(Tally(4, 1.0)) == 0.25


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.at_all:Loss", "no module nowhere.at_all on "),
        ("tests.losses_for_tests:Missing", "has no class Missing."),
        ("tests.losses_for_tests:NoLoss", "expected a class derived from adam.Loss; found"),
        ("tests.losses_for_tests:Needs", "missing 1 required positional argument: 'width'"),
        ("__main__:Loss", 'put the class into a file, such as losses.py, and use loss = "losses:Loss"'),
        ("tests/losses:Absolute", 'expected loss = "module:Class"'),
        (":", 'expected loss = "module:Class"'),
    ],
)
def test_what_cannot_be_imported_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^model.loss: {name}: ") as refused:
        custom_loss(name)
    assert said in str(refused.value)


def test_classes_that_others_cannot_import_are_refused() -> None:
    class Inside(losses.Absolute):
        pass

    with pytest.raises(ConfigurationError, match="defined inside a function"):
        name_of(Inside)
    of_main = type("Absolute", (losses.Absolute,), {"__module__": "__main__", "__qualname__": "Absolute"})
    with pytest.raises(ConfigurationError, match="put the class into a file"):
        name_of(of_main)
    twin = type("Absolute", (losses.Absolute,), {"__module__": "tests.losses_for_tests", "__qualname__": "Absolute"})
    with pytest.raises(ConfigurationError, match="found another there"):
        name_of(twin)
    with pytest.raises(ConfigurationError, match=r"expected a class derived from adam\.Loss"):
        name_of(losses.NoLoss)  # type: ignore[arg-type]


def test_names_that_are_none_are_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"found 'mse'; expected cross_entropy, .* or package\.module:Class"):
        infer(Model((3,), (Dense(2),), "mse"))

"""Losses of one's own are imported by name; what cannot be imported is refused with what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError
from adamctl.model.description import Dense, Model
from adamctl.model.metric import metric_of, takes_targets, target_numbers
from adamctl.model.own_loss import name_of, own_loss, with_folder
from adamctl.model.shapes import infer
from adamctl.model.tally import Tally
from tests import losses_for_tests as losses

ABSOLUTE = "tests.losses_for_tests:Absolute"


def test_a_class_an_object_and_a_name_are_one() -> None:
    assert name_of(losses.Absolute) == name_of(losses.Absolute()) == name_of(ABSOLUTE) == ABSOLUTE
    assert type(own_loss(ABSOLUTE)) is losses.Absolute and own_loss(ABSOLUTE) is own_loss(ABSOLUTE)
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
        ("nowhere.at_all:Loss", "No module named 'nowhere'; install it where every process"),
        ("tests.losses_for_tests:Missing", "there is no Missing in tests.losses_for_tests"),
        ("tests.losses_for_tests:NoLoss", "no class derived from Loss; expected a class derived from adamctl.Loss"),
        ("tests.losses_for_tests:Needs", "missing 1 required positional argument: 'width'"),
        ("__main__:Loss", 'mylosses.py beside the program, and name it as "mylosses:Class"'),
        ("tests/losses:Absolute", 'expected "package.module:Class"'),
        (":", 'expected "package.module:Class"'),
    ],
)
def test_what_cannot_be_imported_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^model.loss: {name}: ") as refused:
        own_loss(name)
    assert said in str(refused.value)


def test_classes_that_others_cannot_import_are_refused() -> None:
    class Inside(losses.Absolute):
        pass

    with pytest.raises(ConfigurationError, match="module of its own"):
        name_of(Inside)
    of_main = type("Absolute", (losses.Absolute,), {"__module__": "__main__"})
    with pytest.raises(ConfigurationError, match="module of its own"):
        name_of(of_main)
    twin = type("Absolute", (losses.Absolute,), {"__module__": "tests.losses_for_tests"})
    with pytest.raises(ConfigurationError, match="another class is imported by this name"):
        name_of(twin)
    with pytest.raises(ConfigurationError, match="expected a name or a class derived"):
        name_of(losses.NoLoss)  # type: ignore[arg-type]


def test_modules_are_found_in_the_current_folder_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "losses_beside.py").write_text(
        "from tests.losses_for_tests import Absolute\n\n\nclass Own(Absolute):\n    metric_name = 'own'\n"
    )
    (tmp_path / "losses_broken.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert own_loss("losses_beside:Own").metric_name == "own" and sys.path[-1] == str(tmp_path)
    both = os.pathsep.join(["x", str(tmp_path)])
    assert with_folder({"PYTHONPATH": "x"}, "losses_beside:Own") == {"PYTHONPATH": both}
    assert with_folder({}, ABSOLUTE) == {"PYTHONPATH": str(Path(__file__).parents[2])}
    assert with_folder({"HOME": "x"}, "logistic") == {"HOME": "x"}
    with pytest.raises(ConfigurationError, match="importing losses_broken failed: ZeroDivisionError"):
        own_loss("losses_broken:Own")


def test_names_that_are_none_are_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"found 'mse'; expected cross_entropy, .* or package\.module:Class"):
        infer(Model((3,), (Dense(2),), "mse"))

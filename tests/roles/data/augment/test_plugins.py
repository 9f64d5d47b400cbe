"""Augmenters of somebody else's package: the one that the document shows, and what cannot be used."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.augment import AUGMENTERS, AugmentConfig
from adamctl.config.data import DataConfig
from adamctl.config.data_conflicts import data_problems
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.augment.augmenter import Augmenter
from adamctl.roles.data.augment.plugins import Examples, open_augmenter
from tests import packages

DOCUMENT = Path(__file__).parents[4] / "docs" / "augmentation.md"
SHAPE = (30, 20)
EXAMPLES = Examples(SHAPE, np.dtype(np.uint8), 255)
DESCRIPTIONS = """\
from adamctl.roles.data.augment.plugins import Augmentation

NOTHING = 3
MISSING = Augmentation("missing", open="mypackage.no_such_module:open")
FAILING = Augmentation("failing", open="mypackage.others:open_failing")
EMPTY = Augmentation("empty", open="mypackage.others:open_empty")
"""
OTHERS = """\
class Failing:
    def apply(self, examples, keys):
        raise IndexError("out of paint")

def open_failing(settings, examples):
    return Failing()

def open_empty(settings, examples):
    return None
"""
ENTRY_POINTS = {
    "speckle": "mypackage.description:AUGMENTATION",
    "renamed": "mypackage.description:AUGMENTATION",
    "nothing": "mypackage.others_described:NOTHING",
    "missing": "mypackage.others_described:MISSING",
    "failing": "mypackage.others_described:FAILING",
    "empty": "mypackage.others_described:EMPTY",
    "broken": "mypackage.no_such_module:AUGMENTATION",
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs what the document shows, and some that are broken, for one test."""
    shown = re.findall(r"`mypackage/(\w+)\.py`[^`]*```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert [name for name, _ in shown] == ["description", "speckle"]
    modules = {**dict(shown), "others_described": DESCRIPTIONS, "others": OTHERS}
    packages.use(tmp_path, "mypackage", modules, AUGMENTERS.group, ENTRY_POINTS, monkeypatch)
    return tmp_path


def augmenter(**settings: Any) -> Augmenter:
    config = AugmentConfig(use=("speckle",), settings={"speckle": settings} if settings else {})
    return Augmenter(config, SHAPE, np.dtype(np.uint8), 7, 0, 255)


def test_examples_are_changed_as_the_document_shows_and_alike_on_every_server() -> None:
    made = augmenter(share=0.1)
    assert made.changes
    whole, backwards = (np.zeros((40, *SHAPE), np.uint8) for _ in range(2))
    made.apply(whole, np.arange(40), 2)
    assert set(np.unique(whole)) == {0, 255} and 0.08 < (whole > 0).mean() < 0.12
    augmenter(share=0.1).apply(backwards, np.arange(40)[::-1], 2)
    np.testing.assert_array_equal(backwards[::-1], whole)
    other = np.zeros_like(whole)
    made.apply(other, np.arange(40), 3)
    assert (other != whole).reshape(40, -1).any(axis=1).all()


def test_its_settings_are_its_own() -> None:
    few, many = (np.zeros((40, *SHAPE), np.uint8) for _ in range(2))
    augmenter().apply(few, np.arange(40), 0)
    augmenter(share=0.5).apply(many, np.arange(40), 0)
    assert 0 < few.sum() < many.sum() / 20
    with pytest.raises(
        ConfigurationError, match=r"^data.augment.settings.speckle: expected share from 0 to 1, found 2"
    ):
        augmenter(share=2)


def test_an_experiment_names_those_that_are_installed() -> None:
    assert set(AUGMENTERS.names()) >= {"speckle", "broken"}
    assert "mypackage.speckle" not in sys.modules
    fits = DataConfig(augment=AugmentConfig(use=("speckle",), settings={"speckle": {"share": 0.1}}))
    assert not data_problems(fits, (64,))
    (problem,) = data_problems(DataConfig(augment=AugmentConfig(use=("speckel",))), (64,))
    assert problem.path == ("data", "augment", "use")
    assert problem.message.startswith('found "speckel"; expected augmenters that are installed here, broken, empty')
    (problem,) = data_problems(DataConfig(augment=AugmentConfig(settings={"speckle": {}})), (64,))
    assert problem.path == ("data", "augment", "settings.speckle")
    assert 'add "speckle" to data.augment.use' in problem.message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent", "data.augment.use 'absent': expected one of broken, empty, failing"),
        ("broken", "(mypackage.no_such_module:AUGMENTATION) cannot be loaded: No module named"),
        ("nothing", "expected an adamctl.roles.data.augment.plugins.Augmentation, found int"),
        ("renamed", "expected an augmenter of that name, found 'speckle'"),
        ("missing", "(mypackage.no_such_module:open) cannot be opened: ModuleNotFoundError: No module named"),
        ("empty", "expected an object with a method apply, found NoneType"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_augmenter(name, {}, EXAMPLES)
    assert said in str(caught.value)


def test_a_failure_names_the_augmenter() -> None:
    made = open_augmenter("failing", {}, EXAMPLES)
    with pytest.raises(DamagedDataError, match=r"data\.augment\.use 'failing' failed with IndexError: out of paint"):
        made.apply(np.zeros((1, *SHAPE), np.uint8), np.zeros(1, np.uint64))


def test_two_packages_with_one_name_are_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.use(package / "other", "other", {}, AUGMENTERS.group, {"speckle": "other:AUGMENTATION"}, monkeypatch)
    with pytest.raises(ConfigurationError, match="two installed packages add an augmenter called 'speckle'"):
        open_augmenter("speckle", {}, EXAMPLES)

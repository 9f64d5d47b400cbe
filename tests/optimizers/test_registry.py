"""Batch algorithms are found by name; one that somebody else's package registers is one like any other."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.errors import ConfigurationError
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.optimizers.local import LocalVectors
from adamctl.optimizers.registry import BUILT_IN, GROUP, find, names

ALGORITHM = """\
import msgspec
from adamctl.optimizers.registry import BatchAlgorithm
from adamctl.optimizers.vectors import dot

class Settings(msgspec.Struct, forbid_unknown_fields=True):
    step: float = 0.1

def descend(v, settings, state):
    h = v.scratch("h")
    while True:
        loss = yield v.evaluate(at=v.x, into=h)
        (square,) = yield v.round(dot(h, h))
        if square < 1e-6:
            return "flat"
        yield v.commit(v.x.set(v.x - settings.step * h), state={"loss": loss})

ALGORITHM = BatchAlgorithm("Plain descent", descend, Settings)
NOTHING = 3
"""
ENTRY_POINTS = """\
[adamctl.optimizers]
descent = descent_package.algorithm:ALGORITHM
broken = descent_package.no_such_module:ALGORITHM
nothing = descent_package.algorithm:NOTHING
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    code, information = tmp_path / "descent_package", tmp_path / "descent_package-1.0.dist-info"
    code.mkdir()
    information.mkdir()
    (code / "__init__.py").touch()
    (code / "algorithm.py").write_text(ALGORITHM)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: descent-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_built_in_ones_are_found_and_checked() -> None:
    algorithm = find("lbfgs")
    assert algorithm.program is lbfgs
    assert algorithm.settings_of({"history": 5}) == LBFGSSettings(history=5)
    for name in BUILT_IN:
        assert find(name).settings_of({}) == find(name).settings()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"history": 32}, "<= 31"),
        ({"history": "ten"}, "int"),
        ({"lr": 0.1}, "lr"),
        ({"change_tolerance": -1.0}, ">= 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        find("lbfgs").settings_of(keys)


def test_entry_points_say_the_same_as_the_registry() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = [EntryPoint(name, value, GROUP) for name, value in project["entry-points"][GROUP].items()]
    assert [point.name for point in points] == list(BUILT_IN)
    assert all(point.load() is find(point.name) for point in points)


def test_one_of_another_package_runs(package: Path) -> None:
    assert names() == [*BUILT_IN, "broken", "descent", "nothing"]
    algorithm = find("descent")
    outcome = LocalVectors(lambda x: (0.5 * float(x @ x), x), np.ones(3)).run(
        algorithm.program, algorithm.settings_of({"step": 0.5})
    )
    assert outcome.stop_reason == "flat"
    assert outcome.x == pytest.approx(np.zeros(3), abs=1e-3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "cannot be loaded: No module named 'descent_package.no_such_module'"),
        ("nothing", "is not an adamctl.optimizers.registry.BatchAlgorithm"),
        ("unknown", "expected one of lbfgs, cg, owlqn, broken, descent, nothing"),
    ],
)
def test_what_cannot_be_used_is_named(package: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        find(name)

"""Batch algorithms are found by name; one that somebody else's package registers is one like any other."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.algorithms import ALGORITHMS, BUILT_IN, algorithm_names
from adamctl.errors import ConfigurationError
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.optimizers.local import LocalVectors
from adamctl.optimizers.registry import find
from tests.optimizers.third_party import NAMES


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
    points = [
        EntryPoint(name, value, ALGORITHMS.group) for name, value in project["entry-points"][ALGORITHMS.group].items()
    ]
    assert [point.name for point in points] == list(BUILT_IN)
    assert all(point.load() is find(point.name) for point in points)


def test_one_of_another_package_runs(package: Path) -> None:
    assert algorithm_names() == [*BUILT_IN, *NAMES]
    algorithm = find("descent")
    outcome = LocalVectors(lambda x: (0.5 * float(x @ x), x), np.ones(3)).run(
        algorithm.program, algorithm.settings_of({"step": 0.5})
    )
    assert outcome.stop_reason == "flat"
    assert outcome.x == pytest.approx(np.full(3, 0.5))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "cannot be loaded: No module named 'descent_package.no_such_module'"),
        ("nothing", "is not an adamctl.optimizers.registry.BatchAlgorithm"),
        ("plain", "its settings are no msgspec.Struct type"),
        ("unknown", "expected one of lbfgs, cg, owlqn, broken, descent, nothing, plain, stumbling, taking, twice"),
    ],
)
def test_what_cannot_be_used_is_named(package: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        find(name)

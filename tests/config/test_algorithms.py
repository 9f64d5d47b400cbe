"""Types of optimizers: ours are known without a search, those of other packages by their entry points alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adamctl.config import algorithms
from adamctl.config.experiment import OptimizerConfig
from adamctl.errors import ConfigurationError
from adamctl.model.rule import RULE_NAMES
from adamctl.plugins import PluginGroup
from tests.config.small_network import load
from tests.optimizers import third_party


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    third_party.use(tmp_path, monkeypatch)
    return tmp_path


def test_rules_are_those_of_servers_but_for_what_clients_add() -> None:
    assert set(algorithms.RULES) == set(RULE_NAMES) - {"add"}
    assert not any(OptimizerConfig(type=name).is_batch for name in algorithms.RULES)
    assert all(OptimizerConfig(type=name).is_batch for name in algorithms.BUILT_IN)


def test_our_own_types_are_known_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginGroup, "installed", lambda group: pytest.fail("it searched the installed packages"))
    assert all(algorithms.is_type(name) for name in (*algorithms.RULES, *algorithms.BUILT_IN))


def test_a_type_of_another_package_is_known_without_loading_it(package: Path) -> None:
    assert load(package, "optimizer.type=broken").optimizer.type == "broken"
    assert "descent_package" not in sys.modules


def test_settings_of_another_package_may_stand_in_the_environment(package: Path) -> None:
    environment = {"ADAMCTL_OPTIMIZER__TYPE": "descent", "ADAMCTL_OPTIMIZER__SETTINGS__STEP": "0.5"}
    assert load(package, environment=environment).optimizer.settings == {"step": 0.5}


def test_an_unknown_type_is_refused_with_all_there_are_and_the_nearest(package: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(package, environment={"ADAMCTL_OPTIMIZER__TYPE": "decsent"})
    allowed = ", ".join(f'"{name}"' for name in (*algorithms.RULES, *algorithms.BUILT_IN, *third_party.NAMES))
    said = f'optimizer.type: found "decsent"; expected one of {allowed}. Did you mean "descent"?'
    assert str(caught.value) == f"ADAMCTL_OPTIMIZER__TYPE: {said}"

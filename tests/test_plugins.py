"""Plug-ins are found by their entry points; names alone load nothing, and what cannot be used is named."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.plugins import PluginGroup
from tests import packages

PLANETS = PluginGroup("adamctl.test_planets", "sky.planet", "a planet", ("earth",), reserved=("sun",))


@dataclass(frozen=True)
class Planet:
    name: str


MODULE = """\
from tests.test_plugins import Planet

MARS, NOTHING = Planet("mars"), 3
"""
POINTS = {
    "venus": "planets_package.no_such_module:VENUS",
    "mars": "planets_package.planets:MARS",
    "sun": "planets_package.planets:MARS",
    "earth": "planets_package.planets:MARS",
    "red": "planets_package.planets:MARS",
    "nothing": "planets_package.planets:NOTHING",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.use(tmp_path, "planets_package", {"planets": MODULE}, PLANETS.group, POINTS, monkeypatch)


def test_our_own_are_known_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginGroup, "installed", lambda group: pytest.fail("it searched the installed packages"))
    assert PLANETS.has("earth")


@pytest.mark.usefixtures("package")
def test_names_alone_load_nothing_and_reserved_ones_are_left_out() -> None:
    assert PLANETS.names() == ["earth", "mars", "nothing", "red", "venus"]
    assert PLANETS.added() == PLANETS.names()[1:]
    assert PLANETS.has("venus") and not PLANETS.has("sun") and not PLANETS.has("pluto")
    assert "planets_package" not in sys.modules


@pytest.mark.usefixtures("package")
def test_one_is_loaded_with_its_entry_point() -> None:
    found, point = PLANETS.load("red")
    assert (found, point.value) == (Planet("mars"), "planets_package.planets:MARS")
    assert PLANETS.load_named("mars", Planet, "a planet") is found


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pluto", "sky.planet 'pluto': expected one of earth, mars, nothing, red, venus"),
        ("venus", "sky.planet 'venus' (planets_package.no_such_module:VENUS) cannot be loaded: No module named"),
        ("nothing", "(planets_package.planets:NOTHING): expected an tests.test_plugins.Planet, found int"),
        ("red", "entry point 'red' (planets_package.planets:MARS): expected a planet of that name, found 'mars'"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PLANETS.load_named(name, Planet, "a planet")
    assert said in str(caught.value)


@pytest.mark.usefixtures("package")
def test_two_packages_with_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.use(tmp_path / "other", "other", {}, PLANETS.group, {"mars": "other:MARS"}, monkeypatch)
    with pytest.raises(ConfigurationError, match="two installed packages add a planet called 'mars'; uninstall one"):
        PLANETS.load("mars")


def test_a_group_without_any_says_so() -> None:
    with pytest.raises(ConfigurationError, match="expected one of none: no installed package adds one"):
        PluginGroup("adamctl.test_nothing", "sky.moon", "a moon").load("luna")

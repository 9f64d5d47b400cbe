"""Roles are plug-ins found by entry point; a broken one is named."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles import registry
from adamctl.roles.registry import GROUP, Option, Role, all_roles

MINE = Role("mine", "a role", "mine:run", (Option("speed", "how fast", float, 1.0),))
NOT_A_ROLE = object()


def points(monkeypatch: pytest.MonkeyPatch, *named: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, GROUP) for name, value in named]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)


def test_a_role_of_another_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, ("mine", f"{__name__}:MINE"))
    assert all_roles() == {"mine": MINE}


def test_what_is_no_role_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, ("odd", f"{__name__}:NOT_A_ROLE"))
    with pytest.raises(ConfigurationError, match=r"'odd' .* is not an adamctl\.roles\.registry\.Role"):
        all_roles()


def test_what_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, ("broken", "there_is_no_such_module:ROLE"))
    with pytest.raises(ConfigurationError, match=r"'broken' \(there_is_no_such_module:ROLE\) cannot be loaded"):
        all_roles()


def test_two_roles_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, ("mine", f"{__name__}:MINE"), ("again", f"{__name__}:MINE"))
    with pytest.raises(ConfigurationError, match="two installed packages add a role called 'mine'"):
        all_roles()


def test_the_descriptions_of_roles_are_light() -> None:
    import subprocess

    code = "import sys, adamctl.roles.controller.role; print([m for m in ('asyncio', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

"""A role that somebody else's package registers by entry point is a role like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import packages

ROLE = """\
from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="greeter",
    summary="Say hello to the cluster",
    run="greeter_package.server:run",
    options=(Option("greeting", "what to say", str, "hello"), Option("loud", "say it loudly", bool, False)),
    needs_controller=False,
)
"""
SERVER = """\
async def run(context):
    text = context.options["greeting"]
    print(text.upper() if context.options["loud"] else text, context.role, flush=True)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    modules = {"role": ROLE, "server": SERVER}
    packages.install(tmp_path, "greeter_package", modules, "adamctl.roles", {"greeter": "greeter_package.role:ROLE"})
    return tmp_path


def adamctl(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-m", "adamctl", *arguments], capture_output=True, text=True, timeout=60, env=environment
    )


def test_it_stands_in_the_help_with_its_summary(site: Path) -> None:
    assert "greeter      Say hello to the cluster" in adamctl(site, "--help").stdout


def test_it_has_its_own_flags_and_the_common_ones(site: Path) -> None:
    text = adamctl(site, "greeter", "start", "--help").stdout
    assert "--greeting" in text
    assert "--bind" in text


def test_it_can_be_started(site: Path) -> None:
    result = adamctl(site, "greeter", "start", "--greeting", "good morning", "--loud")
    assert (result.returncode, result.stdout) == (0, "GOOD MORNING greeter\n"), result.stderr


def test_one_that_cannot_be_loaded_is_named_and_harms_nothing_else(site: Path) -> None:
    (site / "greeter_package" / "role.py").write_text("import no_such_module\n")
    help_text = adamctl(site, "--help")
    assert help_text.returncode == 0
    assert "cannot be loaded from greeter_package.role:ROLE" in " ".join(help_text.stdout.split())
    started = adamctl(site, "greeter", "start")
    assert started.returncode == 2
    assert "no_such_module" in started.stderr
    assert adamctl(site, "ps", "--help").returncode == 0

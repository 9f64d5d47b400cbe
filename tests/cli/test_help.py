"""Help is fast because nothing heavy is imported, and complete because names and summaries are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from adamctl.cli.main import BUILT_IN_ROLES, COMMANDS, application
from adamctl.cli.role import find_role

HEAVY = ("numpy", "rich", "msgspec", "asyncio", "numba", "uvloop", "lmdb", "numexpr", "psutil", "sklearn")
MODULES_OF = "import sys, runpy, json\nsys.argv = ['adamctl', {arguments}]\n" + (
    "try:\n    runpy.run_module('adamctl', run_name='__main__')\nexcept SystemExit:\n    pass\n"
    "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
)


EVERYTHING = """
import json, sys
import click
from click.testing import CliRunner
from adamctl.cli.main import application

def paths(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1] if path else "adamctl")
        for name in command.list_commands(context):
            yield from paths(command.get_command(context, name), [*path, name])

found, known = {}, set(sys.modules)
for path in paths(application, []):
    assert CliRunner().invoke(application, [*path, "--help"]).exit_code == 0, path
    found[" ".join(path)] = sorted(set(sys.modules) - known)
    known |= set(sys.modules)
print(json.dumps(found))
"""


@pytest.mark.parametrize("arguments", ["'--help'", "'--version'", "'ps', '--help'", "'train', '--help'"])
def test_nothing_heavy_is_imported(arguments: str) -> None:
    code = MODULES_OF.format(arguments=arguments)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = set(json.loads(found.stderr.splitlines()[-1]))
    assert "adamctl.cli.main" in modules
    assert modules & set(HEAVY) == set()


def test_no_help_of_any_command_imports_anything_heavy() -> None:
    found = subprocess.run([sys.executable, "-c", EVERYTHING], capture_output=True, text=True, timeout=60, check=True)
    modules_of = json.loads(found.stdout)
    assert {"", "bench failover", "ps start", "ckpt save"} <= set(modules_of)
    assert {path: set(modules) & set(HEAVY) for path, modules in modules_of.items() if set(modules) & set(HEAVY)} == {}


def test_every_command_and_role_is_listed() -> None:
    text = CliRunner().invoke(application, ["--help"]).output
    for name in (*COMMANDS, *BUILT_IN_ROLES):
        assert f"\n  {name} " in text


@pytest.mark.parametrize("name", sorted(BUILT_IN_ROLES))
def test_summaries_are_those_of_the_roles(name: str) -> None:
    assert find_role(name).summary == BUILT_IN_ROLES[name]
    assert find_role(name).name == name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_can_be_imported_and_explains_itself(name: str) -> None:
    result = CliRunner().invoke(application, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize("name", sorted(BUILT_IN_ROLES))
def test_every_role_has_the_common_flags_and_its_own(name: str) -> None:
    text = CliRunner().invoke(application, [name, "start", "--help"]).output
    own = (option.name for option in find_role(name).options)
    for option in ("controller", "name", "bind", "port", "token", "log-level", *own):
        assert f"--{option}" in text
    assert "--ready-fd" not in text


def test_package_metadata_names_the_same_roles() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    lines = project.read_text().split('[project.entry-points."adamctl.roles"]')[1].split("[", 1)[0]
    assert {line.partition(" =")[0] for line in lines.strip().splitlines()} == set(BUILT_IN_ROLES)


def test_no_flag_of_a_command_is_declared_twice() -> None:
    """click only warns of it; two who add a flag to one command would not see it."""
    context = click.Context(application, info_name="adamctl")
    waiting: list[tuple[str, click.Command]] = [("adamctl", application)]
    while waiting:
        path, command = waiting.pop()
        flags = [flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
        assert sorted(set(flags)) == sorted(flags), path
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                waiting.append((f"{path} {name}", found))

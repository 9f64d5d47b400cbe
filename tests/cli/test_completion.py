"""Completion in real shells: what is offered when Tab is pressed, and that the scripts can be read and installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.completion import PLACES, VARIABLE, place, source
from adamctl.cli.main import COMMANDS, application
from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import Noted, state_folder
from adamctl.launch.run_folder import create_run_folder
from tests.cli.test_help import HEAVY

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with `adamctl` in its path, runs, experiments and data; the working directory."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ADAMCTL_STATE", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "bin" / "adamctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m adamctl "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ADAMCTL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("ADAMCTL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "digits", "mnist"):
        folder = create_run_folder(Path("runs"), name)
        (folder / "experiment.toml").touch()
        (folder / "logs" / "ps-1.log").touch()
    (tmp_path / "data" / "faces").mkdir(parents=True)
    (tmp_path / "data" / "fruits.npz").touch()
    (tmp_path / "experiments").mkdir()
    for name in ("one.toml", "two.toml", "other.txt"):
        (tmp_path / "experiments" / name).touch()
    return tmp_path


def offered(line: str) -> list[str]:
    """Returns what bash would offer for the last word of a line, in its words: kind, comma, word."""
    words = line.split(" ")
    runner = CliRunner(env={"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), VARIABLE: "bash_complete"})
    return runner.invoke(application, [], prog_name="adamctl").stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("adamctl ru", ["plain,run"]),
        ("adamctl run s", ["plain,show", "plain,stop"]),
        ("adamctl run show --js", ["plain,--json"]),
        ("adamctl plot di", ["plain,digits", "plain,digits/001", "plain,digits/002"]),
        ("adamctl plot digits m", ["plain,mnist", "plain,mnist/001"]),
        ("adamctl eval no", ["dir,no"]),
        ("adamctl logs digits --role ", ["plain,ps-1"]),
        ("adamctl logs mnist/001 --role p", ["plain,ps-1"]),
        ("adamctl attach ", ["plain,digits/002"]),
        ("adamctl run stop d", ["plain,digits/002"]),
        ("adamctl drain ", ["plain,ps-1"]),
        ("adamctl run follow digits --to t", ["plain,tensorboard"]),
        ("adamctl data inspect f", ["plain,faces", "plain,fruits.npz"]),
        ("adamctl data inspect ./f", ["file,./f"]),
        ("adamctl data inspect faces --format p", ["plain,parquet", "plain,prepared"]),
        ("adamctl data fetch m", ["plain,mnist"]),
        ("adamctl train experiments/", ["plain,experiments/one.toml", "plain,experiments/two.toml"]),
        ("adamctl train exp", ["file,exp"]),
        ("adamctl train experiments/one.toml --resume a", ["plain,auto"]),
        ("adamctl completion ", ["plain,bash", "plain,zsh", "plain,fish"]),
    ],
)
def test_what_is_offered(home: Path, line: str, words: list[str]) -> None:
    note = Noted(Path("runs/digits/002"), state_folder(os.environ))
    try:
        assert offered(line) == words
    finally:
        note.remove()


def test_what_is_broken_offers_nothing_and_says_nothing(home: Path) -> None:
    notes = state_folder(os.environ)
    notes.mkdir(parents=True)
    (notes / "1-1.json").write_text("[broken")
    assert offered("adamctl attach ") == []
    shutil.rmtree("runs")
    Path("runs").touch()
    assert offered("adamctl plot d") == ["dir,d"]


def test_completing_imports_nothing_heavy(home: Path) -> None:
    """Of commands, runs, formats and data; so an answer takes as long as `--help`."""
    code = "import sys, runpy\nsys.argv = ['adamctl']\ntry:\n    runpy.run_module('adamctl', run_name='__main__')\n" + (
        "except SystemExit:\n    pass\nprint(*sys.modules, file=sys.stderr)"
    )
    for line in ("adamctl ", "adamctl plot d", "adamctl data inspect x --format p", "adamctl run follow --to c"):
        environment = {
            **os.environ, VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))
        }  # fmt: skip
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60
        )
        assert found.stdout, found.stderr
        assert set(found.stderr.split()) & set(HEAVY) == set(), line


def in_shell(shell: str, script: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    flags = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *flags, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes(home: Path) -> None:
    """With the installed script, read as the package bash-completion does."""
    if in_shell("bash", "echo $((BASH_VERSINFO[0] * 10 + BASH_VERSINFO[1] >= 44))") != ["1"]:
        pytest.skip("click's script needs bash 4.4")
    CliRunner().invoke(application, ["completion", "bash", "--install"], catch_exceptions=False)
    installed = home / ".local/share/bash-completion/completions/adamctl"
    asked = 'COMP_WORDS=(adamctl plot digits/00); COMP_CWORD=2; "$function" adamctl; printf "%s\\n" "${COMPREPLY[@]}"'
    find = "function=$(complete -p adamctl | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
    assert in_shell("bash", f". {installed} && {find} && {asked}") == ["digits/001", "digits/002"]


def test_fish_completes(home: Path) -> None:
    CliRunner().invoke(application, ["completion", "fish", "--install"], catch_exceptions=False)
    installed = home / ".config/fish/completions/adamctl.fish"
    found = in_shell("fish", f"source {installed}; complete -C 'adamctl plot digits/00'")
    assert found == ["digits/001", "digits/002"]


def test_zsh_completes(home: Path) -> None:
    """`compadd` is defined to print: without a terminal there is nothing to complete in."""
    CliRunner().invoke(application, ["completion", "zsh", "--install"], catch_exceptions=False)
    folder = home / ".local/share/zsh/site-functions"
    script = (
        f"compdef() {{ : }}; compadd() {{ print -l -- $completions }}; . {folder}/_adamctl; "
        "words=(adamctl plot digits/00); CURRENT=3; _adamctl_completion"
    )
    assert in_shell("zsh", script) == ["digits/001", "digits/002"]


@pytest.mark.parametrize("shell", sorted(PLACES))
def test_the_script_is_printed_or_written_where_the_shell_looks(home: Path, shell: str) -> None:
    printed = CliRunner().invoke(application, ["completion", shell], catch_exceptions=False).stdout
    assert printed.strip() == source(shell) and f"{VARIABLE}={shell}_complete" in printed
    said = CliRunner().invoke(application, ["completion", shell, "--install"], catch_exceptions=False).stdout
    path = place(shell, os.environ)
    assert path.is_relative_to(home) and path.read_text() == printed and str(path) in said
    moved = place(shell, {**os.environ, PLACES[shell].variable: str(home / "elsewhere")})
    assert moved == home / "elsewhere" / PLACES[shell].path


def test_a_place_that_cannot_be_written_is_named(home: Path) -> None:
    (home / ".local").touch()
    error = CliRunner().invoke(application, ["completion", "zsh", "--install"]).exception
    assert isinstance(error, ConfigurationError) and "_adamctl cannot be written" in str(error)


def test_every_command_is_offered_with_its_summary(home: Path) -> None:
    runner = CliRunner(env={"COMP_WORDS": "adamctl ", "COMP_CWORD": "1", VARIABLE: "zsh_complete"})
    said = runner.invoke(application, [], prog_name="adamctl").stdout.splitlines()
    words = dict(zip(said[1::3], said[2::3], strict=True))
    assert {name: words[name] for name in COMMANDS} == {name: text for name, (_, text) in COMMANDS.items()}

"""Nothing that others say moves a cursor, begins a line of its own or is read as markup."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adamctl.cli import main as cli
from adamctl.cli.cluster.status import print_cluster
from adamctl.cli.cluster.top import picture
from adamctl.cli.output import echo, table
from adamctl.errors import UnreachableError

EVIL = "\x1b]0;owned\x07\n[bold red]job ended[/nonsense]"
CLUSTER: dict[str, Any] = {
    "controller": {"address": EVIL},
    "nodes": [
        {"role": "ps", "node": "ps-1", "addresses": [EVIL], "status": {"error": EVIL}},
        {"role": EVIL, "node": EVIL, "addresses": [], "status": {EVIL: EVIL}},
    ],
    "jobs": [{"job": EVIL, "state": EVIL, "rule": EVIL, "coordinator": EVIL}],
}


def test_echo_keeps_the_ends_of_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    echo("a\nb\x1b[2J\r")
    assert capsys.readouterr().out == "a\nb\\x1b[2J\\r\n"


def test_a_cell_is_one_line() -> None:
    assert table(("node",), [("a\nb\x1b",)]) == "node\na\\nb\\x1b"


def test_status_and_top_show_what_others_say_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_cluster(CLUSTER)
    told = capsys.readouterr().out
    console = Console(file=io.StringIO(), width=400, force_terminal=True, markup=True)
    console.print(picture(CLUSTER, 400))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (told, drawn):
        assert "[bold red]job ended[/nonsense]" in text
        assert "\x07" not in text and "\x1b]" not in text
    assert "\x1b" not in told
    assert not any(line.startswith("[bold red]") for line in told.splitlines())


def test_an_error_that_a_peer_worded_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (UnreachableError(EVIL), RuntimeError(EVIL)):
        monkeypatch.setattr(cli.application, "main", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        assert cli.run([]) == (3 if isinstance(error, UnreachableError) else 1)
        told = capsys.readouterr().err
        assert "\x1b" not in told and "\\x1b]0;owned\\x07" in told


@pytest.mark.parametrize("folder", ["cli", "launch", "live"])
def test_everything_is_printed_through_what_escapes(folder: str) -> None:
    """`print` and `click.echo` write what they are given."""
    allowed = {"adamctl/cli/output.py", "adamctl/live/reporter.py"}
    root = Path(__file__).resolve().parents[2]
    for path in sorted((root / "adamctl" / folder).rglob("*.py")):
        if path.relative_to(root).as_posix() in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("print", "click.echo", "traceback.print_exc"), f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]

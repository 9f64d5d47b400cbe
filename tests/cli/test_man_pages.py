"""Manual pages: one for every command, which say what --help says, and which roff reads without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from adamctl.cli.main import BUILT_IN_ROLES, COMMANDS
from adamctl.cli.man_pages import write


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {path.name: path.read_text() for path in write(tmp_path_factory.mktemp("man") / "new")}


def test_every_command_has_a_page(pages: dict[str, str]) -> None:
    assert {f"adamctl-{name}.1" for name in (*COMMANDS, *BUILT_IN_ROLES)} | {"adamctl.1"} <= set(pages)
    assert {"adamctl-run-follow.1", "adamctl-ps-start.1", "adamctl-data-inspect.1"} <= set(pages)


def test_a_page_says_what_help_says(pages: dict[str, str]) -> None:
    text = pages["adamctl-run-follow.1"].replace("\\-", "-")
    assert "adamctl-run-follow - Follow the metrics of RUN from its beginning until it ends" in text
    assert ".B --to SINK\ntensorboard, csv, jsonl (to stdout)" in text
    assert "this command only reads its metrics.jsonl, and Ctrl-C ends the command alone" in text
    assert ".BR adamctl-run (1)" in text and "--detached-fd" not in pages["adamctl-train.1"]
    above = pages["adamctl.1"].replace("\\-", "-")
    for name, (_, summary) in COMMANDS.items():
        assert f".BR adamctl-{name} (1)\n{summary}".replace("\\-", "-") in above


def test_every_page_it_refers_to_is_there(pages: dict[str, str]) -> None:
    for text in pages.values():
        for name in re.findall(r"^\.BR (\S+) \(1\)$", text.replace("\\-", "-"), re.MULTILINE):
            assert f"{name}.1" in pages


def test_no_line_of_text_is_a_command_of_roff(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for line in text.splitlines():
            assert re.match(r"\.(TH|SH|PP|TP|B|BR)( |$)", line) or not line.startswith((".", "'")), f"{name}: {line}"
            assert line, f"{name}: roff takes an empty line for a space"


def test_groff_has_no_complaint(pages: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", *files], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr[:2000]

"""The suite decides by itself in how many processes it runs (`tests/conftest.py`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

QUICK = "not slow"


@pytest.fixture(autouse=True)
def eleven_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "cores", lambda: 11)


def test_the_whole_suite_runs_in_more_processes_than_cores_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conftest.processes([str(conftest.TESTS)], QUICK) == conftest.PROCESSES_MAX
    monkeypatch.setattr(conftest, "cores", lambda: 2)
    assert conftest.processes([str(conftest.TESTS)], QUICK) == 4
    monkeypatch.setattr(conftest, "cores", lambda: 1)
    assert conftest.processes([str(conftest.TESTS)], QUICK) == 0


@pytest.mark.parametrize("arguments", [[__file__], [f"{__file__}::test_one"], [str(conftest.TESTS / "papers")]])
def test_a_few_files_run_in_the_process_that_was_started(arguments: list[str]) -> None:
    assert conftest.processes(arguments, QUICK) == 0


@pytest.mark.parametrize("marks", ["slow", ""])
def test_long_suites_have_the_machine_for_themselves(marks: str) -> None:
    assert conftest.processes([str(conftest.TESTS)], marks) == 0


def test_folders_that_take_long_are_there_and_begun_first() -> None:
    assert all((conftest.TESTS / folder).is_dir() for folder in conftest.BEGUN_FIRST)
    last = conftest.turn(Path(__file__))
    assert [conftest.turn(conftest.TESTS / folder / "test_a.py") for folder in conftest.BEGUN_FIRST] == [*range(last)]


def test_tests_of_one_file_run_in_one_process_in_their_order(tmp_path: Path) -> None:
    """Four files in two processes: each says of its first test where it ran, and its second compares."""
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text((conftest.TESTS / "conftest.py").read_text())
    text = "import os\nSEEN = []\ndef test_b(): SEEN.append(os.getpid())\ndef test_a(): assert SEEN == [os.getpid()]\n"
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(text)
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", str(tmp_path)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "8 passed" in done.stdout, done.stdout + done.stderr

"""`logs`: the roles' logs as one, in the order of time, followed until the run ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.cli.run.logs import Merged
from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import Noted, state_folder
from adamctl.launch.run_folder import create_run_folder
from adamctl.roles.log import json_line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAMCTL_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    folder = create_run_folder(Path("runs"), "a").absolute()
    (folder / "experiment.toml").touch()
    return folder


def record(second: float, text: str) -> str:
    return f"2026-05-01T12:00:{second:06.3f}+02:00 INFO role node {text}\n"


def write(folder: Path) -> None:
    (folder / "logs" / "ps-1.log").write_text(
        record(1, "first") + record(3, "fails") + "Traceback:\n  a line of it\n" + record(5, "fifth")
    )
    utc = "2026-05-01T10:00:02.000+00:00 INFO role node second\n"
    (folder / "logs" / "worker-1.log").write_text("before\n" + utc + record(4, "fourth") + "unfinished")


def test_one_log_in_the_order_of_time(folder: Path) -> None:
    write(folder)
    lines = CliRunner().invoke(application, ["logs", "a"]).stdout.splitlines()
    said = [line.partition(" | ")[2].rpartition(" ")[2] for line in lines]
    assert said == ["before", "first", "second", "fails", "Traceback:", "it", "fourth", "unfinished", "fifth"]
    assert lines[1].startswith("ps-1     | 2026") and lines[0] == "worker-1 | before"
    assert CliRunner().invoke(application, ["logs", "a", "--role", "ps"]).stdout.count("\n") == 5


def test_a_role_without_a_log(folder: Path) -> None:
    write(folder)
    error = CliRunner().invoke(application, ["logs", "--role", "data"]).exception
    assert isinstance(error, ConfigurationError) and "logs there: ps-1, worker-1" in str(error)


def test_following_ends_with_the_run(folder: Path) -> None:
    write(folder)
    note = Noted(folder, state_folder({"ADAMCTL_STATE": str(folder.parents[2] / "state")}))

    def end() -> None:
        with (folder / "logs" / "worker-1.log").open("a") as stream:
            stream.write(" no more\n" + record(6, "the last"))
        (folder / "summary.json").touch()
        note.remove()

    timer = threading.Timer(0.5, end)
    timer.start()
    try:
        lines = CliRunner().invoke(application, ["logs", "--follow"]).stdout.splitlines()
    finally:
        timer.join()
    assert lines[-2:] == ["worker-1 | unfinished no more", f"worker-1 | {record(6, 'the last').rstrip()}"]
    assert len(lines) == 10


def test_text_and_json_are_read_together(folder: Path) -> None:
    (folder / "logs" / "ps-1.log").write_text(record(1, "first") + record(3, "third"))
    at = "2026-05-01T10:00:02.000+00:00"
    failed = json_line("ERROR", "worker", "worker-1", "second", at=at, exception="Traceback:\nValueError: x")
    (folder / "logs" / "worker-1.log").write_text(f"{failed}\n")
    lines = CliRunner().invoke(application, ["logs", "a"]).stdout.splitlines()
    assert [line.partition(" | ")[2] for line in lines] == [
        record(1, "first").rstrip(), f"{at} ERROR worker worker-1 second", "Traceback:", "ValueError: x",
        record(3, "third").rstrip(),
    ]  # fmt: skip


def test_what_was_put_aside_is_read_first(folder: Path) -> None:
    log = folder / "logs" / "ps-1.log"
    log.with_name("ps-1.log.1").write_text(record(1, "first") + record(2, "second"))
    log.write_text(record(3, "third"))
    lines = CliRunner().invoke(application, ["logs", "a"]).stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["first", "second", "third"]


def test_a_log_that_began_anew_is_followed_without_a_gap(folder: Path) -> None:
    log = folder / "logs" / "ps-1.log"
    log.write_text(record(1, "first") + record(2, "second"))
    merged = Merged([folder / "logs"], None)
    assert len(list(merged.added(complete=False))) == 2
    log.with_name("ps-1.log.1").write_text(log.read_text() + record(3, "third"))
    log.write_text(record(4, "fourth"))
    assert [line.rpartition(" ")[2] for line in merged.added(complete=False)] == ["third", "fourth"]
    assert list(merged.added(complete=False)) == []

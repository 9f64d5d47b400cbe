"""Metrics are followed as they are written: unfinished lines, files cut off or replaced, runs that go on or end."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.launch import following
from adamctl.launch.following import MetricsTail, follow
from adamctl.launch.live_runs import Noted, is_live
from adamctl.launch.run_folder import create_run_folder
from adamctl.launch.sinks.measurement import Measurement


def text(examples: int, state: str = "training") -> str:
    line = {"time": 1.0, "kind": "progress", "state": state, "examples": examples, "loss": 1.0}
    return json.dumps(line) + "\n"


class Kept:
    """A sink that keeps what it is handed; `then` is called at each flush."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.flushes = 0
        self.then: Any = lambda flushes: None

    def add(self, measurement: Measurement) -> None:
        self.taken.append(measurement.step)

    def went_back(self, step: int) -> None:
        self.taken.append(("back", int(step)))

    def flush(self) -> None:
        self.flushes += 1
        self.then(self.flushes)

    def close(self) -> None:
        self.taken.append("closed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAMCTL_STATE", str(tmp_path / "state"))
    folder = create_run_folder(tmp_path / "runs", "a").absolute()
    (folder / "experiment.toml").touch()
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "runs"


# --- the tail of a file -----------------------------------------------------------------------------------------------


class Read:
    """What a tail has said, and how often it began anew."""

    def __init__(self, path: Path) -> None:
        self.path, self.tail, self.anew = path, MetricsTail(path), 0

    def added(self) -> list[int]:
        def begin_anew() -> None:
            self.anew += 1

        return [fields["examples"] for fields in self.tail.added(begin_anew)]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return Read(tmp_path / "metrics.jsonl")


def test_a_file_that_is_not_there_yet_has_no_lines(read: Read) -> None:
    assert read.added() == []
    read.path.write_text(text(1))
    assert read.added() == [1] and read.added() == [] and read.anew == 0


def test_an_unfinished_line_waits_for_its_end(read: Read) -> None:
    read.path.write_text(text(1) + text(2)[:9])
    assert read.added() == [1]
    with read.path.open("a") as stream:
        stream.write(text(2)[9:-1])
        stream.flush()
        assert read.added() == []
        stream.write("\n")
    assert read.added() == [2]


def test_what_a_crash_left_unfinished_does_not_take_the_next_line_with_it(read: Read) -> None:
    read.path.write_text(text(1)[:20] + text(2) + "\xff[[{\n" + "[1]\n" + text(3))
    assert read.added() == [2, 3]


def test_a_file_that_was_cut_off_or_replaced_is_read_from_its_beginning(read: Read, tmp_path: Path) -> None:
    read.path.write_text(text(1) + text(2))
    assert read.added() == [1, 2]
    read.path.write_text(text(3))
    assert (read.added(), read.anew) == ([3], 1)
    other = tmp_path / "other"
    other.write_text(text(4) + text(5) + text(6))
    other.replace(read.path)
    assert (read.added(), read.anew) == ([4, 5, 6], 2)


def test_an_endless_line_is_dropped(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LINE_BYTES_MAX", 100)
    read.path.write_bytes(b"x" * 500)
    assert read.added() == [] and read.tail._unfinished == b""
    with read.path.open("a") as stream:
        stream.write("\n" + text(1))
    assert read.added() == [1]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl cannot be read"):
        Read(tmp_path / "metrics.jsonl").added()


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_is_followed_until_it_ends_also_when_it_goes_back(folder: Path, state: Path) -> None:
    note, sink = Noted(folder, state), Kept()
    metrics = folder / "metrics.jsonl"
    later = [text(20) + text(30)[:5], text(30)[5:], text(10) + text(15), text(40, "ended")]

    def write(flushes: int) -> None:
        if later:
            with metrics.open("a") as stream:
                stream.write(later.pop(0))

    sink.then = write
    metrics.write_text(text(10))
    try:
        assert follow(folder, state, sink, look_every_s=0.001) == (6, "ended")
    finally:
        note.remove()
    assert sink.taken == [10, 20, 30, ("back", 10), 10, 15, 40]


def test_a_live_run_that_says_nothing_is_waited_for_and_one_that_is_gone_is_not(
    folder: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, sink = Noted(folder, state), Kept()
    assert note.problem == ""
    monkeypatch.setattr(following, "SILENT_S", 0.0)
    (folder / "metrics.jsonl").write_text(text(10))
    timer = threading.Timer(0.2, note.remove)
    timer.start()
    assert follow(folder, state, sink, look_every_s=0.001) == (1, "")
    assert not is_live(folder, state), "the run's process had gone before its silence was its end"
    timer.join()
    assert sink.taken == [10]


def test_a_sink_that_fails_ends_the_following(folder: Path, state: Path) -> None:
    (folder / "metrics.jsonl").write_text(text(10))
    sink = Kept()

    def fail(flushes: int) -> None:
        raise RunFailedError("no paper")

    sink.then = fail
    with pytest.raises(RunFailedError, match="no paper"):
        follow(folder, state, sink, look_every_s=0.001)


def test_the_command(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text(text(10) + text(20, "stopped"))
    runs = str(folder.parents[1])
    found = CliRunner().invoke(application, ["run", "follow", "a", "--to", "jsonl", "--run-dir", runs])
    assert [json.loads(line)["step"] for line in found.stdout.splitlines()] == [10, 20], found.output
    assert found.stderr == "a/001: 2 measurements handed to jsonl; it stopped\n"
    found = CliRunner().invoke(application, ["run", "follow", "a", "--to", "csv", "--run-dir", runs])
    assert found.exit_code == 0 and (folder / "metrics.csv").read_text().count("\n") == 3
    error = CliRunner().invoke(application, ["run", "follow", "a", "--to", "nothing", "--run-dir", runs]).exception
    assert isinstance(error, ConfigurationError) and "tensorboard, csv, jsonl" in str(error)

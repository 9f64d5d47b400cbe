"""Sinks by name: ours, those of other packages, and what is said of those that cannot be used."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.launch.sinks import BUILT_IN, SINKS
from adamctl.launch.sinks.measurement import Measurement
from adamctl.launch.sinks.plugins import SinkKind, find, open_sink
from tests import packages

MEASUREMENT = Measurement("progress", 1.0, 5, 2.0, {"loss/train": 0.5})
MODULE = """\
from adamctl.launch.sinks.plugins import SinkKind

SINK = SinkKind("diary", "diary_package.sink:open_diary", extra="pencil", folder="diary")
BROKEN = SinkKind("broken", "diary_package.sink:open_nothing")
LACKING = SinkKind("lacking", "diary_package.no_such_module:open", extra="pencil")


class Diary:
    def __init__(self, folder):
        folder.mkdir(parents=True)
        self.file = (folder / "diary.txt").open("w")

    def add(self, measurement):
        if measurement.step < 0:
            raise ValueError("no such day")
        print("add", measurement.step, dict(measurement.values), file=self.file)

    def went_back(self, step):
        print("back", step, file=self.file)

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.close()


def open_diary(run, folder):
    return Diary(folder)


def open_nothing(run, folder):
    raise OSError("no paper")
"""
POINTS = {
    "diary": "diary_package.sink:SINK", "broken": "diary_package.sink:BROKEN", "lacking": "diary_package.sink:LACKING",
    "csv": "diary_package.sink:SINK",
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.use(tmp_path / "installed", "diary_package", {"sink": MODULE}, SINKS.group, POINTS, monkeypatch)


def test_our_own_are_the_entry_points_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert tuple(project["entry-points"]["adamctl.sinks"]) == BUILT_IN
    for name in BUILT_IN:
        assert find(name).name == name
        assert find(name).extra in {"", *project["optional-dependencies"]}


@pytest.mark.usefixtures("package")
def test_a_sink_of_another_package_takes_what_is_measured(tmp_path: Path) -> None:
    assert SINKS.names() == [*BUILT_IN, "broken", "diary", "lacking"], "one of our names is not taken over"
    sink = open_sink(find("diary"), "a/001", tmp_path / "diary")
    sink.add(MEASUREMENT)
    sink.went_back(3)
    sink.flush()
    sink.close()
    assert (tmp_path / "diary" / "diary.txt").read_text() == "add 5 {'loss/train': 0.5}\nback 3\n"


@pytest.mark.usefixtures("package")
def test_the_command_hands_a_run_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_STATE", str(tmp_path / "state"))
    run = tmp_path / "runs" / "a" / "001"
    run.mkdir(parents=True)
    (run / "experiment.toml").touch()
    (run / "metrics.jsonl").write_text('{"kind": "progress", "state": "ended", "examples": 7, "loss": 0.25}\n')
    arguments = ["run", "follow", "a", "--to", "diary", "--run-dir", str(tmp_path / "runs")]
    assert CliRunner().invoke(application, arguments, catch_exceptions=False).exit_code == 0
    assert (run / "diary" / "diary.txt").read_text() == "add 7 {'loss/train': 0.25}\n"


@pytest.mark.usefixtures("package")
def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--to 'nothing': expected one of tensorboard, csv, jsonl, broken"):
        find("nothing")
    with pytest.raises(ConfigurationError, match=r"--to broken .* cannot be opened: OSError: no paper"):
        open_sink(find("broken"), "a/001", tmp_path)
    with pytest.raises(ConfigurationError, match=r"cannot be loaded: .*; pip install 'diary-package\[pencil\]'"):
        open_sink(find("lacking"), "a/001", tmp_path)
    sink = open_sink(find("diary"), "a/001", tmp_path / "diary")
    with pytest.raises(RunFailedError, match=r"--to diary .* failed with ValueError: no such day; the run continues"):
        sink.add(Measurement("progress", 1.0, -1, 2.0, {}))
    sink.close()


def test_without_its_extra_the_advice_is_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'adamctl\[tensorboard\]'"):
        open_sink(find("tensorboard"), "a/001", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("csv", "tensorboard"):
        if name == "tensorboard":
            pytest.importorskip("tensorboard")
        with pytest.raises(ConfigurationError, match="file"):
            open_sink(find(name), "a/001", tmp_path / "file" / "inside")


def test_a_kind_says_where_it_writes() -> None:
    assert find("tensorboard").folder == "tensorboard" and isinstance(find("csv"), SinkKind)

"""Whole runs of real roles: how each role's process ends, and that nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from adamctl.config.load import load_experiment, parse_setting
from adamctl.launch import train as train_module
from adamctl.launch.front import Outcome
from adamctl.launch.known_runs import look_at
from adamctl.launch.roles import LocalRoles
from adamctl.launch.terminal import change_nothing
from adamctl.launch.train import TrainOptions, train
from adamctl.live.reading import ProcessReading
from adamctl.roles.coordinator.core.progress import RunProgress
from tests.launch.test_front import Notes

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
WAIT_S = 60.0


class Remembered(LocalRoles):
    """Roles whose ends a test can look at afterwards."""

    last: Remembered

    def start(self) -> None:
        Remembered.last = self
        super().start()


class Interrupting(Notes):
    """Sends this process a signal, as Ctrl-C would, as soon as training has begun."""

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        super().show(progress, readings)
        if progress.loss is not None and not any(shown.loss is not None for shown in self.shown[:-1]):
            os.kill(os.getpid(), signal.SIGINT)


class InterruptingAtOnce(Notes):
    """Sends it while roles are starting."""

    def note(self, text: str) -> None:
        super().note(text)
        if text.startswith("waiting for "):
            os.kill(os.getpid(), signal.SIGINT)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reporter: Notes, *settings: str) -> tuple[Outcome, Path]:
    monkeypatch.setattr("adamctl.launch.train.LocalRoles", Remembered)
    for patience in ("roles.LEAVE_DEADLINE_S", "front.STOP_GRACE_S"):  # a role waits for a core, then leaves by itself
        monkeypatch.setattr(f"adamctl.launch.{patience}", WAIT_S)
    overrides = tuple(map(parse_setting, ("cluster.threads=1", *settings)))
    experiment = load_experiment(DIGITS, settings=overrides, environment={}, search=()).experiment
    return train(experiment, TrainOptions((), "none", tmp_path, os.environ), reporter)


def children() -> set[psutil.Process]:
    """What this process has started; Python's own helper of multiprocessing, begun by another test, may be there."""
    return set(psutil.Process().children(recursive=True))


def test_every_role_exits_0_after_a_good_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, before = Notes(), children()
    settings = ("train.passes=2", "cluster.workers=2", "cluster.ps=2")
    outcome, folder = run(tmp_path, monkeypatch, notes, *settings)
    assert outcome.exit_code == 0, outcome.message
    statuses = {node: end.status for node, end in Remembered.last.ends.items()}
    assert statuses == dict.fromkeys(
        ("controller", "coordinator", "worker-1", "worker-2", "ps-1", "ps-2", "data-1"), 0
    ), [log.read_text() for log in (folder / "logs").iterdir()]
    assert "told by front-coordinator: the run is over" in (folder / "logs" / "ps-1.log").read_text()
    assert not children() - before


def test_every_role_exits_0_after_an_interrupt_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    outcome, folder = run(tmp_path, monkeypatch, Interrupting(), "train.passes=5000")
    assert outcome.exit_code == 130
    assert {end.status for end in Remembered.last.ends.values()} == {0}
    assert len(list(folder.glob("checkpoints/*/manifest.json"))) == 1
    assert not children() - before


def test_a_run_that_is_interrupted_while_it_starts_is_stopped_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adamctl.launch.waits.FIRST_NOTE_S", 0.0)
    before, notes = children(), InterruptingAtOnce()
    outcome, folder = run(tmp_path, monkeypatch, notes)
    assert (outcome.exit_code, outcome.progress) == (130, None)
    assert [note for note in notes.notes if note.startswith("SIGINT: ")]
    found = look_at(folder, tmp_path / "state")
    assert (found.state, found.failure) == ("stopped", "interrupted by SIGINT before it began")
    assert not children() - before


def test_a_run_that_a_second_signal_ended_is_stopped_and_says_so(tmp_path: Path) -> None:
    training = cast(RunProgress, SimpleNamespace(final=False))
    train_module._note_end(tmp_path, Outcome(training, 130, "", signal.SIGINT))
    found = look_at(tmp_path, tmp_path / "state")
    expected = "interrupted by SIGINT before its last checkpoint was written"
    assert (found.state, found.failure) == ("stopped", expected)
    over = cast(RunProgress, SimpleNamespace(final=True))
    train_module._note_end(tmp_path, Outcome(over, 1, "the run failed: its own coordinator has noted why"))
    assert look_at(tmp_path, tmp_path / "state").failure == expected, "as it was"


def test_a_signal_while_what_a_run_has_left_is_removed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues and service managers may send theirs twice, or to a run that has just ended."""
    before, rmtree, meanwhile = signal.getsignal(signal.SIGTERM), shutil.rmtree, dict[str, object]()

    def remove(folder: Path, **given: bool) -> None:
        meanwhile[folder.name] = signal.getsignal(signal.SIGTERM)
        rmtree(folder, **given)

    monkeypatch.setattr(shutil, "rmtree", remove)
    outcome, _ = run(tmp_path, monkeypatch, Notes(), "train.passes=1")
    assert outcome.exit_code == 0
    assert meanwhile["stores"] is change_nothing and meanwhile["secrets"] is change_nothing
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_left_of_a_run_whose_front_was_killed(tmp_path: Path) -> None:
    temporary = Path("/tmp") / f"adamctl-test-{os.getpid()}"
    temporary.mkdir()
    command = [sys.executable, "-m", "adamctl", "train", str(DIGITS), "--passes", "5000", "--plain"]
    front = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, text=True
    )
    try:
        assert front.stderr is not None
        for line in front.stderr:
            if "training" in line:
                break
        roles = psutil.Process(front.pid).children(recursive=True)
        assert roles and list(temporary.glob("adamctl-*/*.s"))
        front.kill()
        front.communicate(timeout=WAIT_S)
        _, alive = psutil.wait_procs(roles, timeout=WAIT_S)
        assert not alive
        until_s = time.monotonic() + WAIT_S
        while list(temporary.iterdir()) and time.monotonic() < until_s:
            time.sleep(0.05)
        assert not list(temporary.iterdir())
    finally:
        front.kill()
        front.communicate(timeout=WAIT_S)
        temporary.rmdir()

"""After an interrupt, the last line is the command that goes on with exactly this run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.cli.run.train import _addresses_again, _next_commands
from adamctl.launch.front import Outcome
from adamctl.launch.train import TrainOptions
from adamctl.roles.coordinator.core.progress import RunProgress

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
WAIT_S = 120


@pytest.mark.parametrize(
    ("folder", "signal_", "expected"),
    [
        ("runs/a/001", 2, ["adamctl train runs/a/001/experiment.toml --resume runs/a/001"]),
        ("b c/a/001", 2, ["adamctl train 'b c/a/001/experiment.toml' --resume 'b c/a/001' --run-dir 'b c'"]),
        ("runs/a/001", 0, ["adamctl eval runs/a/001", "adamctl logs runs/a/001"]),
    ],
)
def test_what_to_type_next(
    folder: str, signal_: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Path(folder, "checkpoints", "000001")
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").touch()
    assert _next_commands(Outcome(None, 0, signal=signal_), Path(folder), "none") == expected


def test_a_run_that_goes_on_listens_where_it_did_so_that_agents_find_it() -> None:
    options = TrainOptions((), "none", Path("runs"), {}, bind="10.0.0.1", port=7000)
    assert _addresses_again(options) == ["--bind", "10.0.0.1", "--port", "7000"]
    assert _addresses_again(TrainOptions((), "none", Path("runs"), {})) == []


def test_a_run_without_a_checkpoint_begins_where_it_began() -> None:
    interrupted = Outcome(None, 0, signal=2)
    anew = "adamctl train runs/a/002/experiment.toml"
    assert _next_commands(interrupted, Path("runs/a/002"), "none") == [anew]
    assert _next_commands(interrupted, Path("runs/a/002"), "runs/a/001") == [f"{anew} --resume runs/a/001"]


def test_a_run_that_was_told_to_stop_goes_on_with_the_same_command() -> None:
    told = Outcome(RunProgress(state="stopped", job="a", passes_total=3), 0)
    assert _next_commands(told, Path("runs/a/002"), "none") == ["adamctl train runs/a/002/experiment.toml"]


def test_a_run_on_a_cluster_goes_on_there() -> None:
    anew = "adamctl train runs/a/002/experiment.toml --join head:7070 --join other:7070"
    assert _next_commands(Outcome(None, 0, signal=2), Path("runs/a/002"), "none", ("head:7070", "other:7070")) == [anew]


def test_without_a_checkpoint_there_is_nothing_to_evaluate(tmp_path: Path) -> None:
    assert _next_commands(Outcome(None, 0), tmp_path, "none") == [f"adamctl logs {tmp_path}"]


def test_the_hint_goes_on_where_the_run_was(tmp_path: Path) -> None:
    """Another run beside it, newer and interrupted, too, is not taken for it."""
    first, seen = interrupted(tmp_path)
    interrupted(tmp_path)
    resumed = start(tmp_path, shlex.split(first)[1:], "--set", f"train.passes={seen['passes'] + 1}")
    try:
        _, stderr = resumed.communicate(timeout=WAIT_S)
    finally:
        resumed.kill()
    assert resumed.returncode == 0, stderr
    summary = json.loads((tmp_path / "runs" / "digits" / "003" / "summary.json").read_text())
    assert summary["passes"] == seen["passes"] + 1
    assert summary["examples"] > seen["examples"]
    (manifest,) = (tmp_path / "runs" / "digits" / "001").glob("checkpoints/*/manifest.json")
    assert f"{seen['examples']} examples into the run" in stderr, (stderr, manifest.read_text()[:300])


def start(folder: Path, arguments: list[str], *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "adamctl", *arguments, "--plain", *more]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})


def interrupted(folder: Path) -> tuple[str, dict[str, int]]:
    """Interrupts a run in its first passes; returns its last line's command and what its checkpoint has seen."""
    settings = ("--passes", "3000", "--threads", "1", "--set", "train.evaluate_every=1", "--set", "optimizer.lr=0.01")
    run = start(folder, ["train", str(DIGITS)], *settings)
    try:
        assert run.stderr is not None
        for line in run.stderr:
            if "test top-1" in line:
                break
        run.send_signal(signal.SIGINT)
        _, rest = run.communicate(timeout=WAIT_S)
    finally:
        run.kill()
    assert run.returncode == 130, rest
    newest = max((folder / "runs" / "digits").iterdir())
    summary = json.loads((newest / "summary.json").read_text())
    command = rest.strip().splitlines()[-1].strip().removeprefix("next").strip()
    return command, {"passes": int(summary["passes"]) + 1, "examples": int(summary["examples"])}

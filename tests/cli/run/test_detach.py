"""What `train --detach` says of the run that it has started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adamctl.cli.run import detach
from adamctl.launch.detaching import Detached


def say(started: Detached, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    monkeypatch.setattr(detach, "start_detached", lambda arguments: started)
    assert detach.detach(("train", "small.toml", "--detach"), as_json=True, experiment="small") == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_run_with_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = say(Detached(str(tmp_path / "small" / "001"), 7, "training"), monkeypatch, capsys)
    assert json.loads(out)["run"] == "small/001"
    assert "small/001 runs without this terminal, training" in err and "adamctl run stop small/001" in err


def test_a_run_without_a_folder_yet_is_not_named_after_the_current_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Large data, or kernels that are compiled for the first time, take longer than the command waits."""
    out, err = say(Detached("", 4321, "starting"), monkeypatch, capsys)
    expected = {"run": "", "run_folder": "", "pid": 4321, "state": "starting"}
    assert json.loads(out).items() >= expected.items()
    assert "has no run folder yet" in err and "kill 4321" in err
    assert "adamctl run stop small, once it is listed" in err
    assert Path.cwd().name not in err and "attach" not in err

"""Lines on stdout: one object each, with the run's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adamctl.launch.sinks.jsonl import open_lines
from adamctl.launch.sinks.measurement import Measurement


def test_every_line_is_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = open_lines("a/001", tmp_path)
    lines.add(Measurement("progress", 1.5, 100, 2.0, {"loss/train": 0.5}))
    lines.went_back(50)
    lines.close()
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"run": "a/001", "kind": "progress", "time": 1.5, "step": 100, "train_seconds": 2.0, "loss/train": 0.5},
        {"run": "a/001", "kind": "went_back", "step": 50},
    ]

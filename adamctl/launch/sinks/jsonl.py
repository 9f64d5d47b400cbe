"""Measurements as JSON on stdout, one object a line, for other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adamctl.launch.sinks.measurement import Measurement
from adamctl.launch.sinks.plugins import SinkKind

SINK = SinkKind("jsonl", "adamctl.launch.sinks.jsonl:open_lines")


def open_lines(run: str, folder: Path) -> Lines:
    """Opens stdout."""
    return Lines(run)


class Lines:
    """Lines of JSON. A line of kind `went_back` says that lines of this step or a later one no longer count."""

    def __init__(self, run: str) -> None:
        self._run = run

    def add(self, measurement: Measurement) -> None:
        self._print(
            {
                "run": self._run,
                "kind": measurement.kind,
                "time": measurement.time_s,
                "step": measurement.step,
                "train_seconds": measurement.train_seconds,
                **measurement.values,
            }
        )

    def went_back(self, step: int) -> None:
        self._print({"run": self._run, "kind": "went_back", "step": step})

    def flush(self) -> None:
        sys.stdout.flush()

    def close(self) -> None:
        sys.stdout.flush()

    def _print(self, values: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(values) + "\n")

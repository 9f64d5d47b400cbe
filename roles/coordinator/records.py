"""What a run writes into its folder: `metrics.jsonl` while it goes on, `summary.json` at its end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from adamctl.roles.coordinator.progress import EvaluationResult, RunProgress

METRICS_NAME: Final = "metrics.jsonl"
SUMMARY_NAME: Final = "summary.json"
_LEFT_OUT = frozenset({"roles", "messages", "evaluations", "result"})


class RunRecords:
    """Appends one line per event. A line is whole or, after a crash, the last one; `time` is Unix time in seconds."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the folder cannot be written to."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = open(folder / METRICS_NAME, "a", encoding="utf-8")  # noqa: SIM115 - closed by close

    def progress(self, progress: RunProgress) -> None:
        values = {k: v for k, v in msgspec.to_builtins(progress).items() if k not in _LEFT_OUT}
        self._write("progress", values)

    def evaluation(self, result: EvaluationResult, progress: RunProgress) -> None:
        """Writes a result, and how the run stood when it came: training accuracy and loss, learning rate."""
        self._write("evaluation", msgspec.to_builtins(result))
        self.progress(progress)

    def summary(self, progress: RunProgress) -> None:
        """Writes the result, how the run ended and its evaluations; the file is whole or not there."""
        self.progress(progress)
        described = dict(progress.result or {})
        described["failure"] = progress.failure
        described["evaluations"] = msgspec.to_builtins(progress.evaluations)
        temporary = self._folder / f".{SUMMARY_NAME}.partial"
        temporary.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self._folder / SUMMARY_NAME)

    def close(self) -> None:
        self._file.close()

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        self._file.write(json.dumps({"time": round(time.time(), 3), "kind": kind, **values}) + "\n")
        self._file.flush()

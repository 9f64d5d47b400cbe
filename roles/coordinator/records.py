"""What a run writes into its folder: `metrics.jsonl` while it runs, `summary.json` at its end."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.roles.coordinator.core.progress import EvaluationResult, RunProgress

METRICS_NAME: Final = "metrics.jsonl"
SUMMARY_NAME: Final = "summary.json"
LINES_WAITING_MAX: Final = 1000
_LEFT_OUT = frozenset({"roles", "messages", "evaluations", "result", "replicas", "lobby"})


class RunRecords:
    """Appends one line per event. Only the last line can be incomplete, after a crash; `time` is Unix time in seconds.

    A full disk does not end the run: lines wait for space, the oldest are dropped, and `problem` is called once.
    """

    def __init__(self, folder: Path, problem: Callable[[str], None] = lambda text: None) -> None:
        """
        Raises:
            OSError: the folder cannot be written to.
            ConfigurationError: another run is writing there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = _opened(folder)
        self._waiting: deque[bytes] = deque(maxlen=LINES_WAITING_MAX)
        self._problem = problem
        self._told = False

    def progress(self, progress: RunProgress) -> None:
        values = {k: v for k, v in msgspec.to_builtins(progress).items() if k not in _LEFT_OUT}
        self._write("progress", values)

    def evaluation(self, result: EvaluationResult, progress: RunProgress) -> None:
        """Writes a result with the state of the run at that time: training accuracy and loss, learning rate."""
        self._write("evaluation", msgspec.to_builtins(result))
        self.progress(progress)

    def iteration(self, progress: RunProgress) -> None:
        """Writes what a batch algorithm has said with a commit; it writes nothing under the rules of Downpour."""
        batch = progress.batch
        if batch is None:
            return
        values = {
            "iteration": batch.iterations,
            "evaluations": batch.evaluations,
            "train_seconds": progress.train_seconds,
            "loss": batch.loss,
            "gradient_max": batch.gradient_max,
            "step": batch.step,
        }
        self._write("iteration", values)

    def summary(self, progress: RunProgress) -> None:
        """Writes the result, how the run ended and its evaluations on a split; the file is complete or absent."""
        self.progress(progress)
        described = dict(progress.result or {})
        described["failure"] = progress.failure
        described["evaluations"] = msgspec.to_builtins(progress.evaluations)
        try:
            write_summary(self._folder, described)
        except OSError as error:
            self._tell(SUMMARY_NAME, error)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        self._waiting.append((json.dumps({"time": round(time.time(), 3), "kind": kind, **values}) + "\n").encode())
        try:
            while self._waiting:
                line = self._waiting[0]
                if (written := os.write(self._file, line)) != len(line):  # the disk is full
                    os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._waiting.popleft()
            self._told = False
        except OSError as error:
            self._tell(METRICS_NAME, error)

    def _tell(self, name: str, error: OSError) -> None:
        if not self._told:
            self._told = True
            self._problem(f"{self._folder / name} cannot be written: {error.strerror}; the run continues")


def write_summary(folder: Path, described: Mapping[str, Any]) -> None:
    """Writes how a run ended; the file is complete or as it was. Raises OSError: it cannot be written."""
    temporary = folder / f".{SUMMARY_NAME}.partial"
    try:
        temporary.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, folder / SUMMARY_NAME)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _opened(folder: Path) -> int:
    """Opens the metrics; raises ConfigurationError if another run has them: both would mix all that they write."""
    file = os.open(folder / METRICS_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise ConfigurationError(
            f"--run-dir {folder}: the coordinator of another run writes there; give each run a folder of its own"
        ) from error
    except OSError:
        pass  # a file system without locks: nothing can be known
    return file

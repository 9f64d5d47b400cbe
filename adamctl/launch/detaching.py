"""A run without a terminal: started in its own session, from which it reports that training has begun."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adamctl.config.names import printable
from adamctl.launch.run_folder import LOGS
from adamctl.live.plain import PlainReporter
from adamctl.live.reading import ProcessReading
from adamctl.live.reporter import Reporter
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.durable_file import write_all
from adamctl.roles.log import json_line, now_text
from adamctl.roles.role_logs import last_lines

FRONT_LOG = "front.log"
FLAG = "--detached-fd"
ERROR = "adamctl: error: "
STARTED_WITHIN_S = 15.0
"""Seconds that `--detach` waits for training to start; data and kernels may take longer, and the run continues."""


@dataclass(frozen=True)
class Detached:
    """The state of a run that was started.

    Attributes:
        folder: its run folder; empty if it never got one.
        state: its first state after starting; empty if it ended before.
        exit_code: set if it has ended; then `message` is the end of its output.
    """

    folder: str
    pid: int
    state: str
    exit_code: int | None = None
    message: str = ""


def start_detached(arguments: Sequence[str], wait_s: float = STARTED_WITHIN_S) -> Detached:
    """Starts `adamctl ARGUMENTS`, a `train` command, in its own session; returns when it trains or has ended.

    Returns after `wait_s` seconds in any case. An interrupt meanwhile also ends the run.
    """
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as reports:
        try:
            process = subprocess.Popen(
                (sys.executable, "-m", "adamctl", *arguments, FLAG, str(write)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(write,),
                start_new_session=True,
            )
        finally:
            os.close(write)
        try:
            told = _reports(reports.fileno(), wait_s)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        folder, state = told.get("folder", ""), told.get("state", "")
        if not state and not told.get("open"):
            status = process.wait()
            code = status if status >= 0 else 128 - status  # killed: as a shell tells it
            lines = last_lines(Path(folder) / LOGS / FRONT_LOG) if folder else []
            why = [index for index, line in enumerate(lines) if line.startswith(ERROR)]
            return Detached(folder, process.pid, "", code, "\n".join(lines[why[-1] if why else 0 :]))
        return Detached(folder, process.pid, state or "starting")


def _reports(descriptor: int, wait_s: float) -> dict[str, str]:
    """Returns a run's reports until it trains, has ended or `wait_s` is over; with `open` if more may come."""
    told: dict[str, str] = {}
    unread, until_s = b"", time.monotonic() + wait_s
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while "state" not in told:
            if not selector.select(max(until_s - time.monotonic(), 0.0)):
                return {**told, "open": "yes"}
            piece = os.read(descriptor, 4096)
            if not piece:
                return told
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                told |= json.loads(line)
    return told


class Announcing:
    """The reporter of a run without a terminal: reports the start to the starting command, then writes a log."""

    def __init__(self, descriptor: int, log_format: str = "text") -> None:
        self._json = log_format == "json"
        self._inner: Reporter = PlainReporter(self._write, time.monotonic)
        self._descriptor = descriptor
        self._folder: Path | None = None
        os.set_inheritable(descriptor, False)

    def begun(self, folder: Path) -> None:
        """Sends all further output to the run folder's log."""
        log = os.open(folder / LOGS / FRONT_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        self._folder = folder
        self._tell({"folder": str(folder.absolute())})

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        """Passes progress on, and reports the first state after starting. The exit code tells how the run ended."""
        if progress.state != "starting" and not progress.final:
            self._tell({"state": progress.state})
            self._close()
        self._inner.show(progress, readings)

    def note(self, text: str) -> None:
        """Passes a line on."""
        self._inner.note(text)

    def close(self) -> None:
        """Closes the inner reporter."""
        self._inner.close()
        self._close()

    def _write(self, text: str) -> None:
        """Writes lines in the format of roles' logs, so that `logs` can order them by time."""
        if self._json and self._folder:
            line = json_line("INFO", "front", "front", text)
        else:
            line = f"{f'{now_text()} INFO front front ' if self._folder else ''}{printable(text)}"
        with suppress(OSError):  # a full disk does not end the run
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _tell(self, values: Mapping[str, str]) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):  # the starting command has gone
                write_all(self._descriptor, json.dumps(values).encode() + b"\n")

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

"""One role as a process of this machine: its session, its log, a lifeline to us and its ready report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adamctl.roles.log import OWN_LOG_VARIABLE
from adamctl.roles.private_folder import PRIVATE
from adamctl.roles.service_manager import VARIABLES

END_SIGNAL = signal.SIGUSR1
"""Asks a role to end; only its parent sends it. SIGTERM may come from whoever ends all processes of a job at once."""
REPORT_BYTES_MAX = 64 << 10
_SINGLE_THREADED = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class RoleCommand:
    """What to start: `arguments` follow `adamctl ROLE start`."""

    role: str
    node: str
    arguments: tuple[str, ...]

    def line(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "adamctl", self.role, "start", "--name", self.node, *self.arguments)


class Lifeline:
    """A pipe of which every role of a run inherits one end. When our end closes, even by a kill, the roles exit."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.read_fd)
            os.close(self._write_fd)


class RoleProcess:
    """A started role.

    Attributes:
        command: how it was started.
        log: where its stdout and stderr go.
        ready: its latest report that it serves; None before the first.
        failure: its report that it failed, sent before it left its cluster; None before, and if it was killed.
    """

    def __init__(
        self, command: RoleCommand, log: Path, lifeline: Lifeline, environment: Mapping[str, str], line: Sequence[str]
    ) -> None:
        self.command = command
        self.log = log
        self.ready: dict[str, Any] | None = None
        self.failure: dict[str, Any] | None = None
        self._unread = b""
        self._killed = False
        self._ready_fd, ready_write = os.pipe()
        os.set_blocking(self._ready_fd, False)
        try:
            with open(log, "ab", opener=PRIVATE) as stream:
                self._process = subprocess.Popen(
                    (*line, "--ready-fd", str(ready_write), "--lifeline-fd", str(lifeline.read_fd)),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env={**environment, OWN_LOG_VARIABLE: str(log)},
                    pass_fds=(ready_write, lifeline.read_fd),
                    start_new_session=True,
                )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(ready_write)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The reaped process's status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the role serves, from its report; empty before."""
        return tuple(map(str, (self.ready or {}).get("addresses", ())))

    @property
    def incarnation(self) -> int:
        """Its incarnation as a member of its cluster, from its report; 0 before."""
        return int((self.ready or {}).get("incarnation", 0))

    def read_reports(self) -> None:
        """Sets `ready` and `failure` from the reports since the last call."""
        if self._ready_fd < 0:
            return
        with suppress(BlockingIOError):
            while len(self._unread) < REPORT_BYTES_MAX and (chunk := os.read(self._ready_fd, 4096)):
                self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            with suppress(ValueError):
                report = json.loads(line)
                if "error" in report:
                    self.failure = self.failure or report
                else:
                    self.ready = report

    def terminate(self) -> None:
        """Asks the role to end cleanly."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(END_SIGNAL)

    def kill(self) -> None:
        """Kills the role and all processes that it started, and reaps it.

        Its process group's number may be reused later, so this happens only once.
        """
        if not self._killed:
            self._killed = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Closes our end of the ready pipe."""
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1


def role_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a role: ours, with libraries that start threads limited to one thread per call.

    Roles divide the cores among their own threads; libraries' threads would compete for the same cores. What a service
    manager gave this process is left out: a role would speak for it.
    """
    kept = {name: value for name, value in environment.items() if name not in VARIABLES}
    return {**kept, **dict.fromkeys(_SINGLE_THREADED, "1")}

"""The role processes of one machine: started, watched, signalled, killed. Never left behind: they share a lifeline."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from adamctl.errors import ConfigurationError
from adamctl.net.address import is_loopback
from adamctl.net.tls.credentials import load, write_folder
from adamctl.roles.durable_file import replace_file
from adamctl.roles.folder_lock import any_locked
from adamctl.roles.host.core.arguments import FOLDER_FLAG
from adamctl.roles.host.core.host_core import UNUSABLE
from adamctl.roles.host.core.instructions import StartProcess
from adamctl.roles.process import LIFELINE_GRACE_S
from adamctl.roles.role_logs import last_lines
from adamctl.roles.role_process import Lifeline, RoleCommand, RoleProcess, role_environment
from adamctl.wire.messages import HostCredentials, HostEnded, HostFailing, HostReading, HostServing, Report

LOGS, KEPT, KEPT_FOR = "logs", "kept", "kept-for"
"""Inside an agent's root: the folders of the logs of roles and of what they keep on disk, and the file of whose run."""
UNUSED_POLL_S = 0.1
UNUSED_WAIT_S = LIFELINE_GRACE_S + 2.0
"""Seconds in which the roles of an agent that was killed have ended."""
CERTIFICATES = "tls"
"""Folder of the roles' certificates, beside their sockets: it is removed with the agent."""
_SECRETS = ("ADAMCTL_TOKEN", "ADAMCTL_TOKEN_FILE")
"""What a role with a certificate does not get: whoever has the token can be a host of the run."""


class RoleProcesses(Protocol):
    """What an agent needs of the processes that it owns; tests have others."""

    def start(self, what: StartProcess) -> HostEnded | None:
        """Starts a role process; returns why not, if it cannot be started."""
        ...

    def changes(self) -> list[Report]:
        """Returns what became of the processes since the last call: serving, failing, ended and reaped."""
        ...

    def signal(self, node: str) -> None: ...

    def kill(self, node: str) -> None: ...

    def tail(self, node: str, count: int) -> tuple[str, list[str]]:
        """Returns the path and the last lines of a role's log, also of one that has ended."""
        ...

    def readings(self) -> list[HostReading]: ...

    def forget(self) -> None:
        """Removes what roles have kept on disk, but their logs."""
        ...

    def forget_others(self, run: str) -> None:
        """Does the same unless it was kept for this run; what is kept from now on is."""
        ...

    def close(self) -> None:
        """Kills what still runs."""
        ...


class LocalProcesses:
    """Real processes. Used by one event loop."""

    def __init__(
        self, root: Path, sockets: Path, bind: str, advertise: str, environment: Mapping[str, str], name: str
    ) -> None:
        """
        Args:
            root: folder for logs and for what roles keep on disk.
            sockets: private folder for Unix sockets and certificates of roles of this machine; short.
            bind, advertise: where roles listen, and the host at which others reach them.
            environment: of the roles, with the token.
            name: of this host, for messages.
        """
        self._logs, self._kept, self._certificates = root / LOGS, root / KEPT, sockets / CERTIFICATES
        self._kept_for = root / KEPT_FOR
        for folder in (self._logs, self._kept):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = () if is_loopback(bind) else ("--advertise", advertise)
        self._common = ("--socket-folder", str(sockets), "--bind", bind, *told)
        self._environment = role_environment(environment)
        self._lifeline = Lifeline()
        self._name = name
        self._running: dict[str, tuple[int, RoleProcess]] = {}
        self._told: set[tuple[str, str]] = set()
        self._meters: dict[int, psutil.Process] = {}

    def start(self, what: StartProcess) -> HostEnded | None:
        """Starts a role process; returns why not: a path that it needs is not here, its certificate is not for it, or
        the system refuses."""
        for group in what.needs:
            if not any(map(os.path.exists, group)):  # what this user may not look at is not here, either
                return self._unusable(what, f"{self._name} has no {' and no '.join(group)}")
        arguments = what.arguments + self._common
        if what.folder:
            arguments += (FOLDER_FLAG[what.role], str(self._kept / what.node))
        environment: Mapping[str, str] = self._environment
        if what.credentials is not None:
            try:
                arguments += ("--tls-dir", str(self._place(what, what.credentials)))
            except ConfigurationError as error:
                self._remove_certificate(what.node)
                return self._unusable(what, f"its certificate cannot be used on {self._name}: {error}")
            environment = {name: value for name, value in environment.items() if name not in _SECRETS}
        command = RoleCommand(what.role, what.node, arguments)
        log = self._logs / f"{what.node}.log"
        try:
            process = RoleProcess(command, log, self._lifeline, environment, command.line())
        except OSError as error:
            self._remove_certificate(what.node)
            return self._unusable(what, f"it cannot be started on {self._name}: {error}")
        self._running[what.node] = (what.attempt, process)
        self._told = {told for told in self._told if told[0] != what.node}
        return None

    def _place(self, what: StartProcess, credentials: HostCredentials) -> Path:
        """Writes a role's certificate and key into a folder of its own, which is removed with its process.

        Raises:
            ConfigurationError: they are not for this role and node, are not valid now, or cannot be written.
        """
        folder = self._certificate_of(what.node)
        write_folder(folder, credentials.authorities, credentials.certificate, credentials.key)
        found = load(folder).identity
        if (found.role, found.node) != (what.role, what.node):
            raise ConfigurationError(f"expected one for {what.role} {what.node}; found {found}")
        return folder

    def _certificate_of(self, node: str) -> Path:
        return self._certificates / f"of-{node}"  # a node may be called ..

    def _remove_certificate(self, node: str) -> None:
        shutil.rmtree(self._certificate_of(node), ignore_errors=True)

    def _unusable(self, what: StartProcess, why: str) -> HostEnded:
        return HostEnded(what.node, what.attempt, UNUSABLE, 0, why, UNUSABLE, retry_helps=False)

    def changes(self) -> list[Report]:
        """See `RoleProcesses.changes`."""
        found: list[Report] = []
        for node, (attempt, process) in list(self._running.items()):
            status = process.status
            if status is not None:
                process.kill()
            process.read_reports()
            if process.ready is not None and self._is_news(node, "serving"):
                found.append(HostServing(node, attempt, process.addresses, process.incarnation))
            if status is not None:
                process.close()
                self._remove_certificate(node)
                del self._running[node]
                found.append(HostEnded(node, attempt, status, process.incarnation, **_failure(process.failure)))
            elif process.failure is not None and self._is_news(node, "failing"):
                found.append(HostFailing(node, attempt, **_failure(process.failure)))
        return found

    def _is_news(self, node: str, what: str) -> bool:
        if (node, what) in self._told:
            return False
        self._told.add((node, what))
        return True

    def signal(self, node: str) -> None:
        """Asks a process to end."""
        if node in self._running:
            self._running[node][1].terminate()

    def kill(self, node: str) -> None:
        """Kills a process and all that it has started."""
        if node in self._running:
            self._running[node][1].kill()

    def tail(self, node: str, count: int) -> tuple[str, list[str]]:
        """See `RoleProcesses.tail`."""
        log = self._logs / f"{node}.log"
        return str(log), last_lines(log, count)

    def readings(self) -> list[HostReading]:
        """Returns processor time since the last call and memory of the live processes."""
        found: list[HostReading] = []
        pids = {node: process.pid for node, (_, process) in self._running.items()}
        self._meters = {pid: meter for pid, meter in self._meters.items() if pid in pids.values()}
        for node, pid in pids.items():
            with suppress(psutil.Error):
                meter = self._meters.setdefault(pid, psutil.Process(pid))
                found.append(HostReading(node, meter.cpu_percent(None) / 100, meter.memory_info().rss))
        return found

    def forget(self) -> None:
        """Removes what roles have kept on disk."""
        shutil.rmtree(self._kept, ignore_errors=True)

    def forget_others(self, run: str) -> None:
        """See `RoleProcesses.forget_others`. A controller would go on with the store of another run."""
        with suppress(OSError):
            if self._kept_for.read_text() == run:
                return
        self.forget()
        self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):  # a full disk; then an agent of our name keeps nothing of ours
            replace_file(self._kept_for, run.encode(), self._kept_for.with_suffix(".new"))

    def close(self) -> None:
        """Kills what still runs, closes every pipe, and removes all certificates."""
        for _, process in self._running.values():
            process.kill()
            process.close()
        self._running.clear()
        shutil.rmtree(self._certificates, ignore_errors=True)
        self._lifeline.close()


async def until_unused(root: Path) -> None:
    """Returns when no role of an agent before uses its folder in this root any more, or has had the time to end."""
    for _ in range(round(UNUSED_WAIT_S / UNUSED_POLL_S)):
        if not any_locked(root / KEPT):
            return
        await asyncio.sleep(UNUSED_POLL_S)


def _failure(report: Mapping[str, Any] | None) -> dict[str, Any]:
    if report is None:
        return {}
    return {
        "error": str(report["error"]),
        "exit_code": int(report.get("exit_code", 1)),
        "retry_helps": bool(report.get("retry_helps", True)),
        "ends_run": bool(report.get("ends_run", False)),
        "ago_s": max(time.monotonic() - float(report.get("failed_s", time.monotonic())), 0.0),
    }


def free_ports(count: int, host: str) -> list[int]:
    """Returns TCP ports that were free a moment ago; all are held until the last one is found, so they differ."""
    with ExitStack() as stack:
        return [_port(stack, host) for _ in range(count)]


def _port(stack: ExitStack, host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    probe.bind((host, 0))
    return int(probe.getsockname()[1])

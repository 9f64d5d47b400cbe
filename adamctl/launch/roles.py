"""The processes of one run, together: started at once, looked at, started again, ended in order, never left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from adamctl.errors import RunFailedError
from adamctl.launch.process import Lifeline, RoleCommand, RoleProcess, role_environment
from adamctl.launch.supervision import RoleEnd

POLL_S = 0.05
STOP_POLL_S = 0.02
STOP_GRACE_S = 5.0
CONTROLLER_GRACE_S = 2.0


class LocalRoles:
    """Owns the processes. Used by the front's event loop only; `kill` may be called at any time."""

    def __init__(self, commands: Sequence[RoleCommand], logs: Path, environment: Mapping[str, str]) -> None:
        self._commands = {command.node: command for command in commands}
        self._logs = logs
        self._environment = role_environment(environment)
        self._lifeline = Lifeline()
        self._processes: dict[str, RoleProcess] = {}
        self.ends: dict[str, RoleEnd] = {}
        """Roles whose process has been reaped."""

    def start(self) -> None:
        """Starts every role, in the order given; none waits for another.

        Raises:
            RunFailedError: the system cannot start a process; those already started are ended.
        """
        for node in self._commands:
            self.start_one(node)

    def start_one(self, node: str) -> None:
        """Starts a role, or starts it again after its process was reaped."""
        command = self._commands[node]
        if node in self._processes:
            self._processes[node].close()
        try:
            process = RoleProcess(command, self.log(node), self._lifeline, self._environment, command.line())
        except OSError as error:
            self.kill()
            raise RunFailedError(f"{node} cannot be started: {error}") from error
        self._processes[node] = process
        self.ends.pop(node, None)

    def log(self, node: str) -> Path:
        """Returns where a role's output goes."""
        return self._logs / f"{node}.log"

    def role(self, node: str) -> str:
        return self._commands[node].role

    def pids(self) -> dict[str, int]:
        """Returns node -> process of the roles that run."""
        return {node: process.pid for node, process in self._processes.items() if node not in self.ends}

    def newly_serving(self) -> list[tuple[str, tuple[str, ...]]]:
        """Returns (node, addresses) of roles that have reported since the last call that they serve."""
        served = []
        for node, process in self._processes.items():
            report = process.read_ready()
            if report is not None and "error" not in report:
                served.append((node, tuple(map(str, report.get("addresses", ())))))
        return served

    def newly_ended(self) -> list[RoleEnd]:
        """Reaps roles that have ended since the last call."""
        ends = []
        for node, process in self._processes.items():
            status = None if node in self.ends else process.status
            if status is not None:
                process.kill()
                process.read_ready()
                report = process.ready or {}
                self.ends[node] = RoleEnd(node, status, str(report.get("error", "")), int(report.get("exit_code", 0)))
                ends.append(self.ends[node])
        return ends

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Asks every role to end, controllers last, so that the others can say goodbye; then ends what is left."""
        controllers = [node for node in self._processes if self.role(node) == "controller"]
        others = [node for node in self._processes if node not in controllers]
        for group, wait_s in ((others, grace_s), (controllers, CONTROLLER_GRACE_S)):
            for node in group:
                self._processes[node].terminate()
            for _ in range(round(wait_s / STOP_POLL_S)):
                if all(self._processes[node].status is not None for node in group):
                    break
                await asyncio.sleep(STOP_POLL_S)
        self.kill()

    def kill(self) -> None:
        """Ends every process group at once and closes every pipe. May be called again."""
        for process in self._processes.values():
            process.kill()
            process.close()
        self._lifeline.close()

"""The processes of one run: started together, watched, restarted, ended in order, never left behind.

`Roles` is what a front needs of them. `LocalRoles` are processes of this machine, its own children; those of other
machines are in `adamctl.launch.hosts.host_roles`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from adamctl.errors import AdamctlError, RunFailedError
from adamctl.launch.failure import LastWords, words_here
from adamctl.launch.supervision import Fail, Note, RoleEnd, Stop
from adamctl.live.reading import ProcessReading
from adamctl.net.transport import Transport
from adamctl.roles.role_process import Lifeline, RoleCommand, RoleProcess, role_environment
from adamctl.wire.messages import Hello, ShutdownRequest

Ask = Callable[[tuple[str, ...]], Awaitable[bool]]
"""Asks the role that serves at these addresses to leave; returns whether it agreed. Bounded in time."""

POLL_S = 0.05
LEAVE_DEADLINE_S = 1.0
"""Seconds that a role may take to answer that it will leave; a healthy one answers at once."""
STOP_POLL_S = 0.01
STOP_GRACE_S = 5.0
"""Seconds that a role may take to leave after it was asked to."""
UNANSWERED_GRACE_S = 2.0
"""Seconds that a role which did not answer may take to leave anyway: it may be leaving already, like a coordinator
whose run has just ended."""
SIGNAL_GRACE_S = 2.0
"""Seconds that it may take after END_SIGNAL; then it is killed."""


async def ask_to_leave(transport: Transport, hello: Hello, address: str) -> bool:
    """Sends SHUTDOWN to a role; returns whether it answered that it leaves. `hello`: the front's identity."""
    try:
        async with asyncio.timeout(LEAVE_DEADLINE_S):
            connection = await transport.connect(address, hello, deadline_s=LEAVE_DEADLINE_S)
            try:
                await connection.request(ShutdownRequest("the run is over"), deadline_s=LEAVE_DEADLINE_S)
            finally:
                await connection.close()
    except (AdamctlError, TimeoutError):
        return False
    return True


def nearest(addresses: Sequence[str]) -> tuple[str, ...]:
    """Returns Unix sockets first: roles may be on this machine."""
    return tuple(sorted(addresses, key=lambda address: not address.startswith("unix:")))


async def _nobody_asks(addresses: tuple[str, ...]) -> bool:
    return False


class Roles(Protocol):
    """What a front needs of the roles of its run, wherever they are. `kill` may be called at any time."""

    @property
    def ends(self) -> Mapping[str, RoleEnd]:
        """Roles whose process has been reaped."""
        ...

    async def begin(self) -> None:
        """Starts every role, or sees to it that they are started.

        Raises:
            RunFailedError: a process cannot be started.
        """
        ...

    def start_one(self, node: str) -> None:
        """Starts a role again after its process was reaped."""
        ...

    def role(self, node: str) -> str: ...

    def there(self, node: str) -> bool:
        """Whether the run still has this role; one that it goes on without is not there."""
        ...

    def pids(self) -> Mapping[str, int]:
        """Returns node -> process of the running roles of this machine."""
        ...

    def readings(self) -> Mapping[str, ProcessReading]:
        """Returns the latest readings of processes of other machines."""
        ...

    def where_logs_are(self, node: str) -> str: ...

    async def ask_for_words(self, node: str) -> None:
        """Has the end of a role's log at hand, if it lies elsewhere, before that place is given back."""
        ...

    def last_words(self, node: str) -> LastWords:
        """Returns the end of a role's log."""
        ...

    async def changed(self) -> None:
        """Waits until one of the four calls below may have something to tell."""
        ...

    def newly_serving(self) -> list[tuple[str, tuple[str, ...]]]:
        """Returns (node, addresses to reach it from here) of roles that serve since the last call."""
        ...

    def newly_ended(self) -> list[RoleEnd]:
        """Returns roles reaped since the last call that nobody told to end."""
        ...

    def failures(self) -> list[RoleEnd]:
        """Returns roles that have been reaped, and those that reported why they are about to end. Reaps none."""
        ...

    def news(self) -> list[Note | Fail | Stop]:
        """Returns what has happened to hosts since the last call."""
        ...

    def saving(self) -> None:
        """The run has been told to write its last checkpoint: roles stay where they are until it is written."""
        ...

    async def stop(self, ask: Ask, grace_s: float, failed: bool = False) -> list[str]:
        """Ends every role; returns the nodes that had to be forced. `failed`: what they kept may tell why."""
        ...

    def kill(self) -> None:
        """Ends every role at once. May be called again."""
        ...

    async def close(self) -> None:
        """Gives back what is not a process. After `kill`."""
        ...


class LocalRoles:
    """Owns the processes. Used by the front's event loop only; `kill` may be called at any time."""

    def __init__(self, commands: Sequence[RoleCommand], logs: Path, environment: Mapping[str, str]) -> None:
        self._commands = {command.node: command for command in commands}
        self._logs = logs
        self._environment = role_environment(environment)
        self._lifeline = Lifeline()
        self._processes: dict[str, RoleProcess] = {}
        self._served: set[str] = set()
        self.ends: dict[str, RoleEnd] = {}
        """Roles whose process has been reaped."""

    async def begin(self) -> None:
        """See `Roles.begin`."""
        self.start()

    def start(self) -> None:
        """Starts every role in the given order; none waits for another.

        Raises:
            RunFailedError: the system cannot start a process; those already started are ended.
        """
        for node in self._commands:
            self.start_one(node)

    def add(self, *commands: RoleCommand) -> None:
        """Adds roles, which `start_one` then starts."""
        self._commands |= {command.node: command for command in commands}

    def start_one(self, node: str) -> None:
        """Starts a role, or restarts it after its process was reaped."""
        command = self._commands[node]
        if node in self._processes:
            self._processes[node].close()
        try:
            process = RoleProcess(command, self.log(node), self._lifeline, self._environment, command.line())
        except OSError as error:
            self.kill()
            raise RunFailedError(f"{node} cannot be started: {error}") from error
        self._processes[node] = process
        self._served.discard(node)
        self.ends.pop(node, None)

    def forget(self, node: str) -> None:
        """Ends a role at once, and knows nothing of it any more."""
        process = self._processes.pop(node)
        process.kill()
        process.close()
        del self._commands[node]

    def log(self, node: str) -> Path:
        """Returns where a role's output goes."""
        return self._logs / f"{node}.log"

    def where_logs_are(self, node: str) -> str:
        """Returns the folder of the logs."""
        return str(self._logs)

    async def ask_for_words(self, node: str) -> None:
        """Does nothing: logs are here."""

    def last_words(self, node: str) -> LastWords:
        """Returns the end of a role's log."""
        return words_here(self.log(node))

    async def changed(self) -> None:
        """Waits a moment: processes are asked, they do not tell."""
        await asyncio.sleep(POLL_S)

    def news(self) -> list[Note | Fail | Stop]:
        """Returns nothing: there are no other hosts."""
        return []

    def readings(self) -> Mapping[str, ProcessReading]:
        """Returns nothing: all processes are here."""
        return {}

    def role(self, node: str) -> str:
        return self._commands[node].role

    def there(self, node: str) -> bool:
        return node in self._commands

    def pids(self) -> dict[str, int]:
        """Returns node -> process of the running roles."""
        return {node: process.pid for node, process in self._processes.items() if node not in self.ends}

    def newly_serving(self) -> list[tuple[str, tuple[str, ...]]]:
        """Returns (node, addresses) of roles that reported since the last call that they serve."""
        served = []
        for node, process in self._processes.items():
            process.read_reports()
            if process.ready is not None and node not in self._served and node not in self.ends:
                self._served.add(node)
                served.append((node, process.addresses))
        return served

    def newly_ended(self) -> list[RoleEnd]:
        """Reaps roles that have ended since the last call."""
        ends = []
        for node, process in self._processes.items():
            status = None if node in self.ends else process.status
            if status is not None:
                process.kill()
                process.read_reports()
                self.ends[node] = _role_end(node, status, process.failure, process.incarnation)
                ends.append(self.ends[node])
        return ends

    def failures(self) -> list[RoleEnd]:
        """See `Roles.failures`."""
        failures = list(self.ends.values())
        for node, process in self._processes.items():
            process.read_reports()
            if process.failure is not None and node not in self.ends:
                failures.append(_role_end(node, 1, process.failure))
        return failures

    async def stop(
        self,
        ask: Ask = _nobody_asks,
        grace_s: float = STOP_GRACE_S,
        failed: bool = False,
        meanwhile: Awaitable[object] | None = None,
    ) -> list[str]:
        """Ends every role: asks it to leave, signals it if it does not, kills it if it ignores the signal.

        All at once, but controllers last, and after `meanwhile`, so that the others can leave the cluster. Returns the
        nodes that served but had to be signalled or killed; `ends` then holds how each role ended.
        """
        controllers = [node for node in self._processes if self.role(node) == "controller"]
        others = [node for node in self._processes if node not in controllers]
        left: list[bool] = []
        for group in (others, controllers):
            left += await asyncio.gather(*(self._end(node, ask, grace_s) for node in group))
            if meanwhile is not None:
                await meanwhile
                meanwhile = None
        self.kill()
        self.newly_ended()
        return [node for node, by_itself in zip((*others, *controllers), left, strict=True) if not by_itself]

    async def _end(self, node: str, ask: Ask, grace_s: float) -> bool:
        """Returns whether the role left without a signal, or never served."""
        process = self._processes[node]
        if process.status is not None:
            return True
        process.read_reports()
        addresses = process.addresses
        if addresses:
            answered = await ask(addresses)
            if await self._gone(process, grace_s if answered else min(grace_s, UNANSWERED_GRACE_S)):
                return True
        process.terminate()
        await self._gone(process, SIGNAL_GRACE_S)
        return not addresses

    async def _gone(self, process: RoleProcess, wait_s: float) -> bool:
        for _ in range(round(wait_s / STOP_POLL_S)):
            if process.status is not None:
                return True
            await asyncio.sleep(STOP_POLL_S)
        return process.status is not None

    def saving(self) -> None:
        """Does nothing: roles of one machine move nowhere."""

    def kill(self) -> None:
        """Ends every process group at once and closes every pipe. May be called again."""
        for process in self._processes.values():
            process.kill()
            process.close()
        self._lifeline.close()

    async def close(self) -> None:
        """Does nothing: `kill` has closed all pipes."""


def _role_end(node: str, status: int, failure: Mapping[str, Any] | None, incarnation: int = 0) -> RoleEnd:
    if failure is None:
        return RoleEnd(node, status, failed_s=time.monotonic(), incarnation=incarnation)
    return RoleEnd(
        node,
        status,
        str(failure["error"]),
        int(failure.get("exit_code", 1)),
        bool(failure.get("retry_helps", True)),
        float(failure.get("failed_s", 0.0)),
        incarnation,
        ends_run=bool(failure.get("ends_run", False)),
    )

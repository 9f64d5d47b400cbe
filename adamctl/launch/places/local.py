"""Agents as processes of this machine: for tests, and to try on one machine what several will do."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

from adamctl.errors import UnreachableError
from adamctl.launch.places.engines import EngineOptions
from adamctl.launch.places.places import AgentCommand, HostNeeds, Lost, Notice
from adamctl.roles.private_folder import PRIVATE
from adamctl.roles.role_process import Lifeline

HOSTS_MAX = 64
"""More agents than this on one machine are a mistake."""
END_S = 15.0
"""Seconds that agents may take to end their roles and themselves."""
POLL_S = 0.1


class LocalPlaces:
    """Keeps the promises of `Places`. The agents' output goes to files in the folder of the options."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._agent: AgentCommand | None = None
        self._lifeline = Lifeline()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self._over = False

    @property
    def processes(self) -> dict[str, int]:
        """Returns host -> process number of its agent, of agents that still run."""
        return {host: process.pid for host, process in self._processes.items() if process.poll() is None}

    @staticmethod
    def check_here(environment: Mapping[str, str]) -> None:
        """Nothing is needed."""

    async def begin(self, hosts: int, each: HostNeeds, agent: AgentCommand) -> None:
        """Starts so many agents. Cores and memory are not divided: all hosts are this machine.

        Raises:
            UnreachableError: more agents than one machine should have, or the system cannot start one.
        """
        if hosts > HOSTS_MAX:
            raise UnreachableError(f"expected at most {HOSTS_MAX} hosts on one machine, found {hosts}")
        self._agent = agent
        for _ in range(hosts):
            self._start(agent)

    async def one_more(self, why: str) -> bool:
        """Starts one more agent; returns whether there is room for it."""
        if self._agent is None or self._over or len(self.processes) >= HOSTS_MAX:
            return False
        self._start(self._agent)
        return True

    async def notices(self) -> AsyncIterator[Notice]:
        """Yields `Lost` for each agent whose process has ended."""
        while not self._over:
            for host, process in list(self._processes.items()):
                status = process.poll()
                if status is not None and host not in self._told:
                    self._told.add(host)
                    yield Lost(host, f"its agent has ended with status {status}")
            await asyncio.sleep(POLL_S)

    async def end(self) -> None:
        """Ends the agents, and their roles with them; kills those that take too long."""
        self._over = True
        for process in self._processes.values():
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.terminate()
        self._lifeline.close()
        for _ in range(round(END_S / POLL_S)):
            if not self.processes:
                break
            await asyncio.sleep(POLL_S)
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _start(self, agent: AgentCommand) -> None:
        host = f"host-{len(self._processes) + 1}"
        log: Path = self._options.folder / f"{host}.log"
        try:
            with open(log, "ab", opener=PRIVATE) as stream:
                self._processes[host] = subprocess.Popen(
                    (*agent.line, "--name", host, "--lifeline-fd", str(self._lifeline.read_fd)),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env={**self._options.environment, **agent.environment},
                    pass_fds=(self._lifeline.read_fd,),
                    start_new_session=True,
                )
        except OSError as error:
            raise UnreachableError(f"the agent of {host} cannot be started: {error}") from error

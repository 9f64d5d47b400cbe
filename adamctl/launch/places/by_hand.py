"""No engine: whoever starts the run starts an agent on each machine, with the one command that is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from shlex import join

from adamctl.launch.places.engines import EngineOptions
from adamctl.launch.places.places import AgentCommand, HostNeeds, Notice

TOKEN_FILE = "TOKEN_FILE"
"""Stands in the command for a copy of the run's token, which every machine needs."""
TLS_DIR = "TLS_DIR"
"""Stands in it for the folder of a certificate, if agents have some of the user's authority."""
FLAGS_OF_THIS_MACHINE = 3
"""How many words of an agent's command name the program: Python, `-m`, `adamctl`."""


class ByHand:
    """Keeps the promises of `Places`: shows the command, and knows nothing more of the machines."""

    def __init__(self, options: EngineOptions) -> None:
        self._note = options.note
        self._command = ""
        self._over = asyncio.Event()

    @staticmethod
    def check_here(environment: Mapping[str, str]) -> None:
        """Nothing is needed."""

    async def begin(self, hosts: int, each: HostNeeds, agent: AgentCommand) -> None:
        """Shows what to type on each machine; the token is named by a file and never shown."""
        self._command = command_for_people(agent)
        machines = "1 machine" if hosts == 1 else f"each of {hosts} machines"
        self._note(f"start an agent on {machines}, each with a name of its own: {self._command}")

    async def one_more(self, why: str) -> bool:
        """Asks whoever reads this to start one more agent."""
        self._note(f"one more machine is wanted ({why}): {self._command}")
        return True

    async def notices(self) -> AsyncIterator[Notice]:
        """Yields nothing: nobody watches the machines but their agents."""
        await self._over.wait()
        return
        yield  # an iterator, as for every engine

    async def end(self) -> None:
        """Agents end with the run: the front tells them."""
        self._over.set()


def command_for_people(agent: AgentCommand) -> str:
    """Returns what to type on a machine, with placeholders for its name and for what it proves who it is with."""
    words = ["adamctl", *agent.line[FLAGS_OF_THIS_MACHINE:]]
    proof = f"--token-file {TOKEN_FILE}" if "ADAMCTL_TOKEN" in agent.environment else f"--tls-dir {TLS_DIR}"
    return f"{join(words)} {proof} --name NAME"

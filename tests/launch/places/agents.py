"""The front's side of `dialing_agent.py`, and what tests of every engine ask of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from adamctl.launch.places.places import AgentCommand, Notice, Places

PROGRAM = Path(__file__).with_name("dialing_agent.py")
DEADLINE_S = 60.0


class Front:
    """Agents that have dialled, in their order; each is what it said of itself."""

    def __init__(self) -> None:
        self.agents: list[dict[str, Any]] = []
        self.gone: list[str] = []
        self.address = ""
        self._changed = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(OSError, ValueError):
            told = json.loads(await reader.readline())
            self.agents.append(told)
            self._changed.set()
            await reader.read()
            self.gone.append(told["name"])
            self._changed.set()

    def named(self) -> list[str]:
        return sorted(agent["name"] for agent in self.agents)

    def agent(self, name: str) -> dict[str, Any]:
        return next(agent for agent in self.agents if agent["name"] == name)

    async def until(self, condition: Callable[[Front], bool], deadline_s: float = DEADLINE_S) -> None:
        async with asyncio.timeout(deadline_s):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    def close(self) -> None:
        """Lets every agent end."""
        for writer in self._writers:
            writer.close()

    def command(self, *more: str) -> AgentCommand:
        line = (sys.executable, str(PROGRAM), "--front", self.address, *more)
        return AgentCommand(line, {"ADAMCTL_TOKEN": "a secret"})


@asynccontextmanager
async def listening() -> AsyncIterator[Front]:
    front = Front()
    server = await asyncio.start_server(front.taken, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    front.address = f"{host}:{port}"
    try:
        yield front
    finally:
        front.close()
        server.close()


class Following:
    """Collects what an engine says."""

    def __init__(self, places: Places) -> None:
        self.notices: list[Notice] = []
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow(places))

    async def _follow(self, places: Places) -> None:
        async for notice in places.notices():
            self.notices.append(notice)
            self._changed.set()

    async def until(self, condition: Callable[[list[Notice]], bool], deadline_s: float = DEADLINE_S) -> None:
        async with asyncio.timeout(deadline_s):
            while not condition(self.notices):
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> None:
        """Returns when the engine says no more."""
        await asyncio.wait_for(self._task, DEADLINE_S)


def running(pid: int) -> bool:
    """Returns whether a process is there and is not one that has ended and was not reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def none_left(pids: list[int], deadline_s: float = DEADLINE_S) -> None:
    """Returns when these processes have ended."""
    await becomes(lambda: not any(map(running, pids)), deadline_s)


async def becomes(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Returns when something that tells nobody holds."""
    for _ in range(round(deadline_s / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still not so after {deadline_s:.0f} s")


def environment_of(pid: int) -> dict[str, str]:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in os.fsdecode(content).split("\0"))
    return {name: value for name, _, value in pairs}

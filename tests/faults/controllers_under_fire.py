"""Real controllers behind links that can be cut, clients that compare and set all the time, and their history."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from adamctl.bench.role_processes import role_hello
from adamctl.bench.soak.links import Links
from adamctl.errors import RemoteError, UnreachableError
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import ControllerClient
from adamctl.wire.messages import ConfigChanges, StatusReply, StatusRequest
from tests.roles.controller.members import MemberProcess, free_addresses
from tests.sim.controllers.history import History

CALL_S = 6.0
PAUSE_S = 0.01
ASK_S = 2.0
STARVED_S = 300.0
"""Of every wait for something that takes a second or two, on a machine that has much else to do."""


class RealTime:
    """What a history needs of a world."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def note(self, *_: object) -> None:
        """Nobody reads it."""


class Fire:
    """See the module; made by `under_fire`.

    Attributes:
        addresses: name -> where everybody reaches a controller: its proxy.
        acknowledged_s: when each change was acknowledged, with when it was asked for.
    """

    def __init__(self, folder: Path, links: Links) -> None:
        self.folder = folder
        self.links = links
        self.time = RealTime()
        self.history = History(self.time)  # type: ignore[arg-type]
        self.addresses: dict[str, str] = {}
        self.processes: dict[str, MemberProcess] = {}
        self.acknowledged_s: list[tuple[float, float]] = []
        self._ports: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, members: int, clients: int) -> None:
        for name, address in zip("abcde"[:members], free_addresses(members), strict=True):
            self._ports[name] = address.rpartition(":")[2]
            self.addresses[name] = await self.links.before(name, int(self._ports[name]))
        for name in self.addresses:
            self.start(name)
        for number in range(clients):
            self._tasks.append(asyncio.create_task(self._work(f"c{number}", number)))
        await self.commits()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self.processes.values():
            process.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    # --- controllers --------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        self.processes[name] = MemberProcess(self.folder / name, name, self.addresses, "--port", self._ports[name])

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes.pop(name).close()

    def stop(self, name: str) -> None:
        self.processes[name].kill(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.processes[name].kill(signal.SIGCONT)

    async def leader(self) -> str:
        """Returns who says that it leads and is confirmed, as its recent status shows."""
        async with asyncio.timeout(STARVED_S):
            while True:
                for name in self.processes:
                    status = await self._status(name)
                    heard = [one.get("silent_s") for one in status.get("members", ())]
                    recent = [silent_s for silent_s in heard if silent_s is not None and silent_s < 1.0]
                    if status.get("state") == "leader" and 2 * len(recent) > len(heard):
                        return name
                await asyncio.sleep(0.05)

    async def _status(self, name: str) -> dict[str, Any]:
        try:
            address = f"tcp://127.0.0.1:{self._ports[name]}"
            connection = await StreamTransport().connect(address, role_hello("front", "looks"), deadline_s=ASK_S)
        except UnreachableError:
            return {}
        try:
            reply = await connection.request(StatusRequest(), deadline_s=ASK_S)
            return reply.message.status if isinstance(reply.message, StatusReply) else {}
        except UnreachableError:
            return {}
        finally:
            await connection.close()

    # --- clients ------------------------------------------------------------------------------------------------------

    def client(self, name: str, *members: str, deadline_s: float = CALL_S, role: str = "ps") -> ControllerClient:
        """Returns a client of all controllers, or of some."""
        addresses = [self.addresses[member] for member in members or self.addresses]
        return ControllerClient(StreamTransport(), addresses, lambda: role_hello(role, name), deadline_s=deadline_s)

    async def commits(self) -> float:
        """Waits until a change that is asked for from now on is acknowledged; returns how many seconds that took."""
        now_s = self.time.now_s
        async with asyncio.timeout(STARVED_S):
            while True:
                ended = [end for asked, end in reversed(self.acknowledged_s[-100:]) if asked >= now_s]
                if ended:
                    return min(ended) - now_s
                await asyncio.sleep(PAUSE_S)

    async def _work(self, name: str, seed: int) -> None:
        """Reads and changes, one after another; tries all controllers in turn."""
        random, client = Random(seed), self.client(name)
        known: dict[str, int] = {}
        number = 0
        try:
            while True:
                number += 1
                try:
                    if random.random() < 0.3:
                        await self._read(client, name, known)
                    else:
                        await self._change(client, name, known, random, number)
                except (UnreachableError, RemoteError):
                    pass  # nobody knows what became of it
                await asyncio.sleep(random.random() * PAUSE_S)
        finally:
            await client.close()

    async def _read(self, client: ControllerClient, name: str, known: dict[str, int]) -> None:
        operation = self.history.invoke(name, "read")
        revision, entries = await client.read("/jobs/t/")
        self.history.read(operation, revision, {entry.key: (entry.value, entry.revision) for entry in entries})
        known.clear()
        known.update({entry.key: entry.revision for entry in entries})

    async def _change(
        self, client: ControllerClient, name: str, known: dict[str, int], random: Random, number: int
    ) -> None:
        keys = random.sample(["/jobs/t/buckets/a", "/jobs/t/buckets/b", "/jobs/t/buckets/c"], random.randint(1, 2))
        conditions = {key: known.get(key, 0) for key in keys if random.random() < 0.7}
        changes = ConfigChanges(conditions, dict.fromkeys(keys, f"{name}.{number}".encode()))
        operation = self.history.invoke(name, "change", changes)
        reply = await client.compare_and_set(changes)
        self.history.changed(operation, reply.revision, reply.conflicts)
        self.acknowledged_s.append((operation.invoked_s, self.time.now_s))
        if not reply.conflicts:
            known.update(dict.fromkeys(keys, reply.revision))


@asynccontextmanager
async def under_fire(folder: Path, members: int, clients: int = 4) -> AsyncIterator[Fire]:
    """Runs controllers and clients; at the end their history is checked."""
    async with Links() as links:
        fire = Fire(folder, links)
        try:
            await fire.begin(members, clients)
            yield fire
        finally:
            await fire.end()
        fire.history.check()

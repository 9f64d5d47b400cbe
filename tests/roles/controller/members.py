"""Several controllers on loopback, inside this process or as processes of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.context import RoleContext
from adamctl.roles.controller import server
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.roles.controller.store import LogStore
from adamctl.wire.messages import Hello
from tests.ports import free_ports
from tests.roles.controller.driven_core import OpenCore

LOG = logging.getLogger("adamctl.test")
BOUND_S = 60.0
"""Of every wait for something that takes a second or two."""


def free_addresses(count: int) -> list[str]:
    """Returns addresses on loopback that were free a moment ago."""
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(count)]


def client_of(addresses: Iterable[str], session: str | None = None, hello: Hello | None = None) -> ControllerClient:
    said = hello or make_hello("front", "test")
    return ControllerClient(StreamTransport(), list(addresses), lambda: said, log=LOG, session=session)


class MemberInProcess:
    """One controller on this loop, with its store in a folder. Can be stopped and started again."""

    def __init__(self, folder: Path, name: str, peers: dict[str, str], identity: int) -> None:
        self.folder = folder
        self.name = name
        self.peers = peers
        self.core = OpenCore(
            ControllerConfig(), name=name, peers=peers, identity=identity, chance=Random(identity).random
        )
        self.context = RoleContext(
            role="controller",
            node=name,
            options={},
            transport=StreamTransport(),
            controller=None,
            stopping=asyncio.Event(),
            log=LOG,
            listen=(peers[name],),
        )
        self._store = LogStore(folder)
        self._task = asyncio.create_task(server.serve(self.context, self.core, self._store))

    async def stop(self) -> None:
        self.context.stop("the test ends")
        await asyncio.gather(self._task, return_exceptions=True)
        await self.context.close()
        self._store.close()


@asynccontextmanager
async def members_on(folder: Path, count: int = 3) -> AsyncIterator[dict[str, MemberInProcess]]:
    """Runs a cluster of controllers; yields its members by name. What is in the dictionary at the end is stopped."""
    peers = dict(zip("abcde", free_addresses(count), strict=False))
    members = {
        name: MemberInProcess(folder / name, name, peers, number) for number, name in enumerate(peers, start=101)
    }
    try:
        yield members
    finally:
        await asyncio.gather(*(member.stop() for member in members.values()))


class MemberProcess:
    """One controller as `adamctl controller start` runs it."""

    def __init__(self, folder: Path, name: str, peers: dict[str, str], *more: str) -> None:
        self.name = name
        self.address = peers[name]
        port = self.address.rpartition(":")[2]
        listed = ",".join(f"{peer}={address}" for peer, address in peers.items())
        self._log = (folder.parent / f"{name}.log").open("ab")
        arguments = ("controller", "start", "--name", name, "--port", port, "--dir", str(folder), "--peers", listed)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "adamctl", *arguments, *more],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "ADAMCTL_TOKEN": ""},
        )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Ends the process at once, or lets another signal reach it."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(timeout=BOUND_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=BOUND_S)
        self._log.close()

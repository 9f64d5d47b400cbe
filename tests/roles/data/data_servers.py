"""Data servers on one transport, in this process, for the tests of servers and their clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from adamctl.config.data import DataConfig
from adamctl.net.transport import Connection, Server, Transport
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.data.server import DataServer
from adamctl.roles.data.store import DataStore
from adamctl.wire.messages import Hello

TINY = DataConfig(format="idx", source="tiny", scale="none")
WAIT_S = 20


def hello(node: str, role: str = "data") -> Hello:
    return Hello(1, 1, (), role, node, 1)


class Farm:
    """Data servers on one transport, for one test."""

    def __init__(self, transport: Transport, address: Callable[[str], str], search: Path) -> None:
        self.transport = transport
        self._address = address
        self._search = search
        self.servers: dict[str, tuple[DataServer, Server]] = {}

    async def start(self, node: str, search: Path | None = None, roots: tuple[str, ...] = ("/",)) -> DataServer:
        loop = asyncio.get_running_loop()
        store = DataStore([str(search or self._search)], threads=1, ahead=2, memory_bytes=1 << 30)
        server = DataServer(store, loop, roots)
        listening = await self.transport.serve(
            [self._address(node)], hello(node), server.handle, on_disconnect=server.disconnected
        )
        self.servers[node] = server, listening
        return server

    async def stop(self, node: str) -> None:
        server, listening = self.servers.pop(node)
        await listening.close()
        await asyncio.get_running_loop().run_in_executor(None, server.close)

    async def connect(self, node: str) -> Connection:
        return await self.transport.connect(self._address(node), hello("worker-0", "worker"), deadline_s=WAIT_S)

    async def client(self, *nodes: str) -> DataClient:
        return DataClient([await self.connect(node) for node in nodes])

"""One suite for every transport: a scenario runs over TCP, Unix sockets (asyncio's loop and uvloop's) and in memory."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adamctl.net.connection import StreamConnection
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ClientLimits, ServerLimits
from adamctl.net.loop import run
from adamctl.net.server import StreamServer
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.net.transport import ArrivalHandler, Handler, PlacingHandler, Request
from adamctl.wire.messages import Empty, Hello
from tests.net.tls.certificates import Authority, ManyCertificates

KINDS = ("tcp", "unix", "tcp-uvloop", "unix-uvloop", "tls", "tls-uvloop", "memory", "memory-tls")


def echo(request: Request) -> None:
    """Answers a BENCH_BLOCK with nothing, after having looked at it."""
    request.reply(Empty())


class World:
    """What a scenario works with; closes everything it made and checks that every buffer came back."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.secure = "tls" in kind
        self.kind = "tcp" if kind.startswith("tls") else kind.partition("-")[0]
        self.folder = folder
        self.servers: list[StreamServer] = []
        self.connections: list[StreamConnection] = []
        self.disconnected: list[int] = []
        self.authority = Authority(folder.with_name(f"{folder.name}-tls")) if self.secure else None
        self.transport: Any = self.make_transport()

    def make_transport(
        self, client_limits: ClientLimits | None = None
    ) -> StreamTransport | MemoryNetwork | ManyCertificates:
        """Returns a transport; with TLS, everyone who connects or serves has a certificate of its own."""
        if self.kind == "memory":
            tls = None if self.authority is None else self.authority.credentials_of
            return MemoryNetwork(Random(1), client_limits=client_limits, tls=tls)
        if self.authority is not None:
            return ManyCertificates(self.authority, client_limits=client_limits)
        return StreamTransport(client_limits=client_limits)

    def new_address(self) -> str:
        number = len(self.servers)
        return {
            "tcp": "tcp://127.0.0.1:0",
            "unix": f"unix://{self.folder}/{number}.sock",
            "memory": f"memory://server-{number}",
        }[self.kind]

    async def serve(
        self, handler: Handler = echo, *, token: str = "", arriving: ArrivalHandler | None = None,
        placing: PlacingHandler | None = None, **limits: Any,
    ) -> StreamServer:  # fmt: skip
        server: StreamServer = await self.transport.serve(
            [self.new_address()],
            make_hello("ps", f"ps-{len(self.servers)}", 3, token),
            handler,
            on_disconnect=self.disconnected.append,
            arriving=arriving,
            placing=placing,
            limits=ServerLimits(**limits),
        )
        self.servers.append(server)
        return server

    async def connect(
        self, server: StreamServer, *, hello: Hello | None = None, deadline_s: float = 10.0
    ) -> StreamConnection:
        connection: StreamConnection = await self.transport.connect(
            server.addresses[0], hello or make_hello("worker", "worker-0", 4), deadline_s=deadline_s
        )
        self.connections.append(connection)
        return connection

    async def pair(self, handler: Handler = echo, **limits: Any) -> tuple[StreamServer, StreamConnection]:
        server = await self.serve(handler, **limits)
        return server, await self.connect(server)

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()
        for server in self.servers:
            await server.close()
            assert server.pool.statistics().outstanding_bytes == 0
        assert self.transport.pool.statistics().outstanding_bytes == 0
        assert not list(self.folder.iterdir()), "a socket file was left behind"


Scenario = Callable[[World], Awaitable[None]]


def run_world(kind: str, folder: Path, scenario: Scenario) -> None:
    async def main() -> None:
        world = World(kind, folder)
        await scenario(world)
        await world.close()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    if kind.startswith("memory"):
        run_virtual(main())
    elif kind.endswith("uvloop"):
        run(main())
    else:
        run(main(), loop_factory=asyncio.new_event_loop)


def everywhere(*kinds: str) -> Callable[[Scenario], Any]:
    """Makes a test of a scenario, once per kind of transport (all of them, if none is named)."""

    def decorate(scenario: Scenario) -> Any:
        @pytest.mark.parametrize("kind", kinds or KINDS)
        def test(kind: str, tmp_path: Path) -> None:
            run_world(kind, tmp_path, scenario)

        functools.update_wrapper(test, scenario)
        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for the scenario's parameters
        return test

    return decorate


async def until(condition: Callable[[], bool], turns: int = 2000) -> None:
    """Waits for something that must come; fails if it does not."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never came")

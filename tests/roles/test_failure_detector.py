"""A role that had a connection with a process finds out whether that has ended, where etcd keeps the members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from adamctl.config.records import NodeRecord, encode, node_key
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Server
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.failure_detector import FailureDetector, looked_at
from adamctl.wire.messages import ConfigChanges, Empty, ReplicaPrepareReply, ReplicaPrepareRequest

BOUND_S = 30.0
NODE, INCARNATION = "ps-1", 7


class MemberRemover:
    """Remembers who was taken off the members."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.heard = asyncio.Event()

    async def leave(self, node: str, incarnation: int, *, deadline_s: float) -> None:
        self.told.append((node, incarnation))
        self.heard.set()


class Scene:
    """A role with its failure detector, and another process that it knows."""

    def __init__(self) -> None:
        self.remover = MemberRemover()
        self.store = MemoryConfigurationStore()
        self.transport = StreamTransport()
        self.context = RoleContext(
            role="ps",
            node="ps-0",
            options={},
            transport=self.transport,
            controller=self.store,
            stopping=asyncio.Event(),
            log=logging.getLogger("adamctl.test"),
        )
        self.context.failure_detector = FailureDetector(
            self.store,
            self.remover,
            self.transport,
            self.context.hello,
            stopping=self.context.stopping,
            log=self.context.log,
        )
        self.server: Server

    async def start(self) -> None:
        hello = make_hello("ps", NODE, INCARNATION)
        self.server = await self.transport.serve(["tcp://127.0.0.1:0"], hello, lambda request: request.reply(Empty()))
        await self.join(INCARNATION)

    def record(self, incarnation: int, host: str = "") -> NodeRecord:
        return NodeRecord(NODE, "ps", incarnation, self.server.addresses, host or host_id(), 1)

    async def join(self, incarnation: int) -> None:
        await self.store.compare_and_set(ConfigChanges({}, {node_key(NODE): encode(self.record(incarnation))}))


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.start()
    try:
        yield made
    finally:
        await made.context.close()
        await made.server.close()


async def test_a_process_that_refuses_connections_has_ended() -> None:
    async with scene() as now:
        await now.server.close()
        now.context.lost_sight_of(NODE, INCARNATION)
        now.context.lost_sight_of(NODE, INCARNATION)
        async with asyncio.timeout(BOUND_S):
            await now.remover.heard.wait()
        assert now.remover.told == [(NODE, INCARNATION)]


@pytest.mark.parametrize("why", ["it answers", "it has left", "it has come back"])
async def test_others_are_left_alone(why: str) -> None:
    async with scene() as now:
        if why != "it answers":
            await now.server.close()
        if why == "it has left":
            await now.store.compare_and_set(ConfigChanges({}, {}, (node_key(NODE),)))
        if why == "it has come back":
            await now.join(INCARNATION + 1)
        assert now.context.failure_detector is not None
        await now.context.failure_detector._look(NODE, INCARNATION)
        assert now.remover.told == []


async def test_who_had_connected_to_us_is_looked_after() -> None:
    async with scene() as now:
        ours = await now.context.serve(lambda request: request.reply(ReplicaPrepareReply(1)))
        for node, incarnation in (("client-1", 0), (NODE, INCARNATION)):
            hello = make_hello("ps", node, incarnation)
            connection = await now.transport.connect(ours.addresses[0], hello, deadline_s=BOUND_S)
            await connection.request(ReplicaPrepareRequest("job", 1, 1, {}), deadline_s=BOUND_S)
            await now.server.close()
            await connection.close()
        async with asyncio.timeout(BOUND_S):
            await now.remover.heard.wait()
        assert now.remover.told == [(NODE, INCARNATION)]


async def test_a_loopback_address_of_another_machine_proves_nothing() -> None:
    async with scene() as now:
        await now.server.close()
        assert await looked_at(now.record(INCARNATION), now.transport, now.context.hello) is False
        assert await looked_at(now.record(INCARNATION, "elsewhere/1"), now.transport, now.context.hello) is None

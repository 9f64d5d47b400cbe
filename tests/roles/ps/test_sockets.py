"""A server and clients over real sockets, where a send takes its time: what is on its way must not be written to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    encode,
    job_key,
    layout_key,
    node_key,
)
from adamctl.errors import RemoteError
from adamctl.model.rule import RuleConfig
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.stream import StreamTransport
from adamctl.roles.addresses import KINDS
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.roles.ps.client.routing import read_node
from adamctl.roles.ps.options import server_options
from adamctl.roles.ps.server import ParameterServer
from adamctl.wire.messages import AttachRequest, ConfigChanges, StatusReply, StatusRequest
from tests.cluster import ROOTS
from tests.roles.ps.ps_cluster import make_tensors, read_while

ROWS, ROW_SIZE = 16, 1 << 17  # 8 MiB in shards of half a MiB


@asynccontextmanager
async def serving(
    transport: StreamTransport | None = None, flags: Mapping[str, str] | None = None
) -> AsyncIterator[MemoryConfigurationStore]:
    """A server with one job of rule `add`, reachable over TCP."""
    store = MemoryConfigurationStore()
    context = RoleContext(
        "ps", "ps-0", {}, transport or StreamTransport(), store, asyncio.Event(), logging.getLogger("ps")
    )
    context.listen = ("tcp://127.0.0.1:0",)
    options = server_options({"apply_threads": "1", "checkpoint_root": ROOTS, **(flags or {})})
    running = asyncio.create_task(ParameterServer(context, options, None).run())
    try:
        while not context.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        told = context.bound.advertised
        others = told["administration"], told["replication"]
        record = LayoutRecord(make_tensors(((ROWS, ROW_SIZE),)), 1)
        layout = record.layout()
        own = encode(NodeRecord("ps-0", "ps", 1, context.addresses, host_id(), 1, 0, *others))
        await store.compare_and_set(ConfigChanges({}, {node_key("ps-0"): own}))  # before a job is placed on it
        puts = {job_key("a"): encode(JobRecord("running", layout.hash, RuleConfig("add"), 1, "c"))}
        puts[layout_key("a")] = encode(record)
        puts |= {bucket_key("a", bucket.index): encode(BucketRecord(1, "ps-0")) for bucket in layout.buckets}
        await store.compare_and_set(ConfigChanges({}, puts))
        yield store
    finally:
        context.stopping.set()
        await running
        await context.close()


async def attached(store: MemoryConfigurationStore, incarnation: int) -> ParameterClient:
    client = ParameterClient(StreamTransport(), lambda: make_hello("worker", "w", incarnation, ""), store, "a")
    await client.attach(deadline_s=120)
    return client


async def test_what_is_being_sent_is_never_written_to() -> None:
    async with serving() as store:
        writer, *readers = [await attached(store, incarnation) for incarnation in range(1, 5)]
        flat = np.zeros(writer.layout.flat_size, np.float32)
        await writer.pull(flat)
        clear = PushSet(writer.layout, 1.0)
        clear.delta(0, -flat)
        await writer.push(clear)

        async def write() -> None:
            ones = PushSet(writer.layout, 1.0)
            ones.delta(0, np.ones(writer.layout.flat_size, np.float32))
            for _ in range(40):
                await writer.push(ones)

        await read_while(write(), readers)
        prices = writer.measured.prices(["ps-0"])
        assert prices is None or (0 <= prices.busy <= 1 and prices.adds_per_s > 0)
        for client in (writer, *readers):
            await client.close()


@pytest.mark.parametrize("connections", [2, 4])
async def test_several_connections_carry_pushes_and_pulls_once_each_and_in_order(connections: int) -> None:
    async with serving() as store:
        client = ParameterClient(
            StreamTransport(), lambda: make_hello("worker", "w", 7, ""), store, "a", connections=connections
        )
        await client.attach(deadline_s=30)
        assert {route.connection for route in client.routing.runs} == set(range(connections))
        flat = np.zeros(client.layout.flat_size, np.float32)
        await client.pull(flat)
        ones = PushSet(client.layout, 1.0)
        ones.delta(0, np.ones(client.layout.flat_size, np.float32))
        pending = [client.start_push(ones) for _ in range(20)]
        await client.channel("ps-0", 1).drop()  # in the middle of it; the others go on
        outcomes = [await one for one in pending]
        assert not any(outcome.refused for outcome in outcomes)
        after = np.zeros_like(flat)
        pulled = await client.pull(after)
        np.testing.assert_allclose(after, flat + 20, rtol=1e-6)
        assert (pulled.sequences == 20).all() and (pulled.pushes == 20).all()
        await client.close()


async def test_pushes_wait_in_turn_when_memory_for_their_bodies_is_used_up() -> None:
    """Many clients with more under way than the server may hold: bounded, even, and every push applied once."""
    limits = ServerLimits(memory_bytes_max=64 << 20)
    async with serving(StreamTransport(limits)) as store:
        clients = [await attached(store, incarnation) for incarnation in range(1, 13)]
        body = np.ones(clients[0].layout.flat_size, np.float32)  # 8 MiB
        served = [0] * len(clients)
        stop = asyncio.Event()

        async def work(number: int) -> None:
            push = PushSet(clients[number].layout, 1.0)
            push.delta(0, body)
            under_way = [clients[number].start_push(push) for _ in range(2)]
            while not stop.is_set():
                await under_way.pop(0)
                served[number] += 1
                under_way.append(clients[number].start_push(push))
                if sum(served) >= 10 * len(clients):
                    stop.set()
            for pending in under_way:
                await pending
                served[number] += 1

        before = np.zeros_like(body)
        await clients[0].pull(before)
        async with asyncio.timeout(120):
            await asyncio.gather(*(work(number) for number in range(len(clients))))
        assert max(served) <= 2 * min(served), served
        after = np.zeros_like(body)
        await clients[0].pull(after)
        np.testing.assert_allclose(after, before + sum(served), rtol=1e-5)
        for client in clients:
            await client.close()


async def test_clients_find_the_address_that_is_for_what_they_want(tmp_path: Path) -> None:
    """Pushes and pulls go to one address, checkpoints to another; neither is taken at the other's (Adam 3.3.4)."""
    flags = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "replication_listen": "127.0.0.1:0"}
    async with serving(flags=flags) as store:
        record = await read_node(store, "ps-0")
        kinds = [record.addresses_for(kind) for kind in KINDS]
        assert len(set(kinds)) == 3 and all(len(addresses) == 1 for addresses in kinds)
        client = await attached(store, 1)
        await client.pull(np.zeros(client.layout.flat_size, np.float32))
        orders = ParameterClient(StreamTransport(), lambda: make_hello("coordinator", "c", 2), store, "a")
        await orders.attach(deadline_s=30)
        assert await orders.checkpoint(str(tmp_path))
        await orders.close()
        address = record.addresses_for("administration")[0]
        connection = await StreamTransport().connect(address, make_hello("front", "f"), deadline_s=10)
        assert isinstance((await connection.request(StatusRequest(), deadline_s=10)).message, StatusReply)
        await connection.close()
        connection = await StreamTransport().connect(address, make_hello("worker", "w", 2), deadline_s=10)
        with pytest.raises(RemoteError, match="is clients, which is taken at tcp://127"):
            await connection.request(AttachRequest("a", client.layout.hash), deadline_s=10)
        await connection.close()
        await client.close()

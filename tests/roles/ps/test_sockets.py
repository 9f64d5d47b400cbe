"""A server and clients over real sockets, where a send takes its time: what is on its way must not be written to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

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
from adamctl.model.rule import RuleConfig
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.client import MemoryConfigurationStore
from adamctl.roles.ps.client import ParameterClient, PushSet
from adamctl.roles.ps.options import server_options
from adamctl.roles.ps.server import ParameterServer
from adamctl.wire.messages import ConfigChanges
from tests.roles.ps.ps_cluster import make_tensors

ROWS, ROW_SIZE = 16, 1 << 17  # 8 MiB in shards of half a MiB


@asynccontextmanager
async def serving() -> AsyncIterator[MemoryConfigurationStore]:
    """A server with one job of rule `add`, reachable over TCP."""
    store = MemoryConfigurationStore()
    context = RoleContext("ps", "ps-0", {}, StreamTransport(), store, asyncio.Event(), logging.getLogger("ps"))
    context.listen = ("tcp://127.0.0.1:0",)
    running = asyncio.create_task(ParameterServer(context, server_options({"apply_threads": "1"}), None).run())
    try:
        while not context.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        record = LayoutRecord(make_tensors(((ROWS, ROW_SIZE),)), 1)
        layout = record.layout()
        puts = {job_key("a"): encode(JobRecord("running", layout.hash, RuleConfig("add"), 1))}
        puts[layout_key("a")] = encode(record)
        puts[node_key("ps-0")] = encode(NodeRecord("ps-0", "ps", 1, context.addresses, host_id(), 1))
        puts |= {bucket_key("a", bucket.index): encode(BucketRecord(1, "ps-0")) for bucket in layout.buckets}
        await store.compare_and_set(ConfigChanges({}, puts))
        yield store
    finally:
        context.stopping.set()
        await running
        await context.close()


async def attached(store: MemoryConfigurationStore, incarnation: int) -> ParameterClient:
    client = ParameterClient(StreamTransport(), lambda: make_hello("worker", "w", incarnation, ""), store, "a")
    await client.attach(deadline_s=30)
    return client


async def test_what_is_being_sent_is_never_written_to() -> None:
    async with serving() as store:
        writer, *readers = [await attached(store, incarnation) for incarnation in range(1, 5)]
        flat = np.zeros(writer.layout.flat_size, np.float32)
        await writer.pull(flat)
        clear = PushSet(writer.layout, 1.0)
        clear.delta(0, -flat)
        await writer.push(clear)
        stop = asyncio.Event()

        async def write() -> None:
            ones = PushSet(writer.layout, 1.0)
            ones.delta(0, np.ones(writer.layout.flat_size, np.float32))
            for _ in range(40):
                await writer.push(ones)
            stop.set()

        async def read(client: ParameterClient) -> None:
            into = np.zeros(client.layout.flat_size, np.float32)
            while not stop.is_set():
                pulled = await client.pull(into)
                for shard in client.layout.shards:
                    values = into[shard.offset : shard.offset + shard.size]
                    assert values.min() == values.max() == pulled.pushes[shard.index] - 1

        await asyncio.gather(write(), *(read(client) for client in readers))
        for client in (writer, *readers):
            await client.close()

"""A parameter server on a Unix socket, and clients of it in this process and in others."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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
from adamctl.model.layout import Tensor
from adamctl.model.rule import RuleConfig
from adamctl.net.address import TransportKind, host_id
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.roles.ps.options import server_options
from adamctl.roles.ps.server import ParameterServer
from adamctl.wire.messages import ConfigChanges

ROWS, ROW_SIZE = 8, 1 << 16  # 2 MiB in shards of a quarter of a MiB
JOB, COORDINATOR = "a", "c"


async def fill(
    store: MemoryConfigurationStore, addresses: tuple[str, ...], rule: RuleConfig = RuleConfig("add")
) -> None:
    """Registers a server and places a job of zeros on it, alike in every process that does so."""
    node = encode(NodeRecord("ps-0", "ps", 1, addresses, host_id(), 1))
    await store.compare_and_set(ConfigChanges({}, {node_key("ps-0"): node}))
    record = LayoutRecord((Tensor("t", 0, (ROWS, ROW_SIZE), 0, "zeros", 0.0),), 1)
    layout = record.layout()
    puts = {job_key(JOB): encode(JobRecord("running", layout.hash, rule, 1, COORDINATOR))}
    puts[layout_key(JOB)] = encode(record)
    puts |= {bucket_key(JOB, bucket.index): encode(BucketRecord(1, "ps-0")) for bucket in layout.buckets}
    await store.compare_and_set(ConfigChanges({}, puts))


class SharingWorld:
    """What `sharing_world` yields; `server` is the parameter server itself."""

    def __init__(self, server: ParameterServer, context: RoleContext, store: MemoryConfigurationStore) -> None:
        self.server, self.context, self.store = server, context, store
        self.clients: list[ParameterClient] = []

    @property
    def region_bytes(self) -> int:
        """Memory of clients that the server has mapped."""
        assert self.context._server is not None
        return self.context._server.region_bytes

    async def client(self, kind: TransportKind = "auto", role: str = "worker", **options: float) -> ParameterClient:
        client = await attached(self.store, len(self.clients) + 1, kind, role, **options)
        self.clients.append(client)
        return client

    async def values(self) -> np.ndarray:
        """The parameters as a client over TCP sees them."""
        client = await self.client("tcp")
        into = np.zeros(client.layout.flat_size, np.float32)
        await client.pull(into, deadline_s=120)
        return into


@asynccontextmanager
async def sharing_world(
    folder: Path, threads: int = 1, memory: str = "80%", rule: RuleConfig = RuleConfig("add")
) -> AsyncIterator[SharingWorld]:
    """A server that listens on TCP and a Unix socket in `folder`; everything is closed afterwards."""
    store = MemoryConfigurationStore()
    context = RoleContext(
        "ps", "ps-0", {}, StreamTransport(kind="auto"), store, asyncio.Event(), logging.getLogger("p")
    )
    context.listen = ("tcp://127.0.0.1:0", f"unix://{folder}/ps.sock")
    server = ParameterServer(context, server_options({"apply_threads": str(threads), "memory": memory}), None)
    running = asyncio.create_task(server.run())
    try:
        while not context.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await fill(store, context.addresses, rule)
        world = SharingWorld(server, context, store)
        yield world
        for client in world.clients:
            await client.close()
    finally:
        context.stopping.set()
        await running
        await context.close()


async def attached(
    store: MemoryConfigurationStore, incarnation: int, kind: TransportKind, role: str = "worker", **options: float
) -> ParameterClient:
    transport = StreamTransport(kind=kind)
    client = ParameterClient(transport, lambda: make_hello(role, role[0], incarnation, ""), store, JOB, **options)
    await client.attach(deadline_s=120)
    return client


def delta_of(client: ParameterClient, flat: np.ndarray) -> PushSet:
    push = PushSet(client.layout, 1.0)
    push.delta(0, flat[: ROWS * ROW_SIZE])
    return push


async def push_for_ever(address: str) -> None:
    """Pushes ones from shared memory as fast as it goes; says so after the first was acknowledged."""
    store = MemoryConfigurationStore()
    await fill(store, (address,))
    client = await attached(store, 1000, "shared")
    ones = client.shared.new_array(client.layout.flat_size)
    ones[:] = 1
    await client.push(delta_of(client, ones))
    print("pushing", client.transports()["ps-0"], flush=True)
    while True:
        await asyncio.gather(*(client.push(delta_of(client, ones)) for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(push_for_ever(sys.argv[1]))

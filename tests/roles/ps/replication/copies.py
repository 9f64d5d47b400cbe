"""Three servers that keep copies of one job, in memory, for tests of their shells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.cli.cluster.stuck import findings, servers_of
from adamctl.config.records import BucketRecord, bucket_key, decode, encode
from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.ps.replication.core.recovery import State
from adamctl.wire.messages import ConfigChanges
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import constant, make_client, push_of
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.store_cluster import crash

THREE = ("ps-0", "ps-1", "ps-2")
FAST = ControllerConfig(beacon_interval_s=0.5, lost_after_s=2.5)


@asynccontextmanager
async def replicated(seed: int, *names: str, **options: Any) -> AsyncIterator[ReplicatedCluster]:
    async with memory_cluster(seed, config=FAST) as cluster, asyncio.timeout(150):
        world = ReplicatedCluster(cluster)
        await world.start(*(names or THREE), **options)
        yield world


async def add(client: ParameterClient, value: float = 1.0) -> None:
    await client.push(push_of(client.layout, constant(client.layout, value), kind="delta"), deadline_s=60)


async def zeroed(world: ReplicatedCluster) -> ParameterClient:
    """A client that has made all values 0."""
    client = await make_client(world.cluster, "a", "w", attempt_s=2.0)
    flat = constant(client.layout, 0.0)
    await client.pull(flat, deadline_s=60)
    await client.push(push_of(client.layout, -flat, kind="delta"), deadline_s=60)
    return client


def values_of(arrays: list[np.ndarray]) -> set[float]:
    return {float(value) for array in arrays for value in np.unique(array)}


def storing(world: ReplicatedCluster, name: str) -> Any:
    return world.servers[name]._storing


async def stuck(world: ReplicatedCluster, chosen: str = "") -> list[Any]:
    """Returns what `adamctl recover` finds of each bucket; `chosen`: as with `--from`."""
    store = world.cluster.client
    _, entries = await store.read("/jobs/")
    servers = servers_of((await store.read("/nodes/"))[1])
    statuses = {
        name: world.servers[name].status() | {"incarnation": one.record.incarnation}
        for name, one in servers.nodes.items()
        if name in world.servers
    }
    return findings("a", entries, servers, statuses, chosen)


async def replace_second(world: ReplicatedCluster, learner: str) -> None:
    """Another server is to become each bucket's second copy; the one that was it has no part any more."""
    store = world.cluster.client
    _, entries = await store.read("/jobs/a/buckets/")
    for index, entry in enumerate(entries):
        record = decode(entry.value, BucketRecord)
        changed = msgspec.structs.replace(
            record, epoch=record.epoch + 1, in_sync=(record.primary,), learners=(learner,)
        )
        key = bucket_key("a", index)
        reply = await store.compare_and_set(ConfigChanges({key: entry.revision}, {key: encode(changed)}))
        assert not reply.conflicts


async def lose(world: ReplicatedCluster, name: str, patch: pytest.MonkeyPatch) -> None:
    """Ends a server without its last words."""
    await crash(world.cluster, name, patch)
    del world.servers[name]


async def until_found(world: ReplicatedCluster, state: State, chosen: str = "") -> list[Any]:
    """Returns what `stuck` does once all buckets are in a state."""
    async with asyncio.timeout(60):
        while True:
            found = await stuck(world, chosen)
            if found and all(one.state is state for one in found):
                return found
            await asyncio.sleep(0.1)

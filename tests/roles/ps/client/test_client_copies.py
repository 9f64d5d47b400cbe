"""Clients of buckets with copies: servers die, fall silent or forget, and pushes and pulls go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from adamctl.roles.controller.core.service.config import lease_config
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import checkpoint, make_client
from tests.roles.ps.replicated import ReplicatedCluster

THREE = ("ps-0", "ps-1", "ps-2")
LEASE_S = 1.0
WAIT_S = 60.0


@asynccontextmanager
async def three_servers(seed: int, acks: str = "replicated") -> AsyncIterator[ReplicatedCluster]:
    """Three copies of a job whose values are all 0, with short leases."""
    async with memory_cluster(seed, config=lease_config(LEASE_S, None)) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*THREE)
        await world.add_job(THREE, acks=acks)
        yield world


async def client_of(world: ReplicatedCluster, name: str, *, zero: bool = False) -> ParameterClient:
    client = await make_client(world.cluster, "a", name)
    if zero:
        flat = np.zeros(client.layout.flat_size, np.float32)
        await client.pull(flat, deadline_s=WAIT_S)
        await client.push(delta_of(client, -flat), deadline_s=WAIT_S)
    return client


def delta_of(client: ParameterClient, flat: np.ndarray) -> PushSet:
    push = PushSet(client.layout, 1.0)
    for number, tensor in enumerate(client.layout.tensors):
        push.delta(number, flat[tensor.offset : tensor.offset + tensor.size])
    return push


def ones(client: ParameterClient) -> PushSet:
    return delta_of(client, np.ones(client.layout.flat_size, np.float32))


async def values(client: ParameterClient) -> set[float]:
    flat = np.zeros(client.layout.flat_size, np.float32)
    await client.pull(flat, deadline_s=WAIT_S)
    return {float(value) for tensor in client.layout.tensors for value in flat[tensor.offset :][: tensor.size]}


@pytest.mark.parametrize("how", ["dead", "silent"])
async def test_pushes_on_their_way_arrive_once_and_in_order_when_a_server_goes(how: str) -> None:
    async with three_servers(81) as world:
        clients = [await client_of(world, "w0", zero=True), await client_of(world, "w1")]
        pushes = []
        for number in range(20):
            pushes += [client.start_push(ones(client)) for client in clients]
            if number == 5:
                if how == "dead":
                    await world.kill("ps-1")
                else:
                    for other in ("controller-0", "ps-0", "ps-2", "w0", "w1"):
                        world.cluster.network.partition("ps-1", other, both_ways=True)
            await asyncio.sleep(0.01)
        for push in pushes:
            assert not (await push.wait(WAIT_S)).refused
        assert await values(clients[0]) == {40.0}
        assert all(client.routing.record.replication == 3 for client in clients)
        assert "ps-1" not in clients[0].servers
        for client in clients:
            await client.close()
        if how == "silent":
            await world.kill("ps-1")


async def test_a_server_that_has_lost_what_it_acknowledged_hears_where_we_are() -> None:
    """`applied` promises nothing when the primary dies; but the client must not wait for ever for its lost numbers."""
    async with three_servers(82, acks="applied") as world:
        client = await client_of(world, "w", zero=True)
        await world.until_equal()
        primary = client.servers[0]
        for other in THREE:
            if other != primary:
                world.cluster.network.partition(primary, other, both_ways=True)
        for _ in range(3):
            await client.push(ones(client), deadline_s=WAIT_S)
        await world.kill(primary)
        outcome = await client.push(ones(client), deadline_s=WAIT_S)
        assert not outcome.refused and len(outcome.staleness) == len(client.layout.shards)
        assert await values(client) <= {1.0, 2.0, 3.0, 4.0}
        await client.close()


async def test_a_checkpoint_is_whole_though_a_server_dies(tmp_path: Path) -> None:
    async with three_servers(83) as world:
        client = await client_of(world, "w", zero=True)
        await client.push(ones(client), deadline_s=WAIT_S)
        await world.kill("ps-2")
        files = await checkpoint(world.cluster, "a", tmp_path, deadline_s=WAIT_S)
        found = sorted(shard for file in files for shard in file.shards)
        assert found == list(range(len(client.layout.shards)))
        await client.close()


async def test_who_comes_while_a_server_is_away_is_served() -> None:
    async with three_servers(84) as world:
        first = await client_of(world, "w0", zero=True)
        await world.kill("ps-0")
        second = await client_of(world, "w1")
        await second.push(ones(second), deadline_s=WAIT_S)
        await first.push(ones(first), deadline_s=WAIT_S)
        assert await values(second) == {2.0}
        await first.close()
        await second.close()

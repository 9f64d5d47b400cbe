"""What a client learns when what was acknowledged to it is lost with all copies: how much, once, and never silently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.cli.cluster.stuck import findings, servers_of
from adamctl.errors import DeadlineError
from adamctl.model.layout import ParameterLayout
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.ps.client.rollback import Rollbacks, settled_body
from adamctl.roles.ps.core.flush import FlushConfig
from adamctl.roles.ps.replication.core.recovery import Finding, State, recovery
from tests.roles.ps.ps_cluster import constant
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.replication.test_shell import THREE, add, replicated, values_of, zeroed
from tests.roles.ps.store_cluster import crash, until

LOST = 3
"""Pushes of each client that are acknowledged and never reach a disk."""


def test_what_one_process_says_again_counts_once() -> None:
    told: list[str] = []
    rollbacks = Rollbacks("job", told.append)
    rollbacks.told("ps-1", 7, 0)
    rollbacks.told("ps-1", 7, 4)
    rollbacks.told("ps-1", 7, 4)
    rollbacks.told("ps-1", 7, 6)
    rollbacks.told("ps-1", 8, 1)  # its next process counts from the beginning
    assert rollbacks.numbers == 7 and len(told) == 3
    assert told[0].startswith("job 'job' was rolled back: ps-1 continues from the stores, without 4 shard updates")


def test_only_shards_that_were_pushed_to_are_told_of() -> None:
    settled = np.array([0, 3, 0, 5])
    (pairs,) = settled_body(settled, [0, 1, 3])
    assert pairs.tolist() == [[1, 3], [3, 5]]
    assert not settled_body(settled, [0, 2]) and not settled_body(settled, [])


# --- a cluster --------------------------------------------------------------------------------------------------------


async def look(world: ReplicatedCluster) -> list[Finding]:
    _, jobs = await world.cluster.client.read("/jobs/")
    _, nodes = await world.cluster.client.read("/nodes/")
    contexts = {name: world.cluster.contexts[name] for name in world.servers}
    statuses = {name: {**one.status(), "incarnation": one.incarnation} for name, one in contexts.items()}
    return findings("a", jobs, servers_of(nodes), statuses)


@asynccontextmanager
async def stuck(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ReplicatedCluster, ...]]:
    """Three servers have died with pushes that were acknowledged and not saved, and only two come back."""
    async with replicated(seed, store=str(folder), loss_window_s="1") as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        for name in THREE:
            status = world.cluster.contexts[name].status
            await until(lambda status=status: status()["store"]["loss_window_bytes"] == 0, f"{name} has saved all")
        for server in world.servers.values():
            assert server.core.flush is not None
            server.core.flush.config = FlushConfig(window_s=600.0)
        for _ in range(LOST):
            await add(client)
        for name in THREE:
            del world.servers[name]
            await crash(world.cluster, name, patch)
        await world.start("ps-0", "ps-1", store=str(folder))
        with pytest.raises(DeadlineError):  # it connects to both again, and cannot go on
            await client.pull(constant(client.layout, 0.0), deadline_s=1.0)
        yield world, client  # type: ignore[misc]
        await client.close()


async def until_told(world: ReplicatedCluster) -> list[Finding]:
    """Returns what is found when all living servers have looked into their stores."""
    async with asyncio.timeout(30):
        while True:
            found = await look(world)
            if State.UNCERTAIN not in {one.state for one in found}:
                return found
            await asyncio.sleep(0.05)


async def recover(world: ReplicatedCluster, parity: int | None = None) -> None:
    """Recovers all buckets, or those with even or odd numbers."""
    found = [one for one in await until_told(world) if parity is None or one.bucket % 2 == parity]
    assert {one.state for one in found} == {State.STUCK}
    for changes in recovery("a", found, time.time()):
        assert not (await world.cluster.client.compare_and_set(changes)).conflicts
    wanted = {one.bucket for one in found}
    async with asyncio.timeout(30):
        while not wanted <= {one.bucket for one in await look(world) if one.state is State.HELD}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def pulled(client: ParameterClient, shards: list[int] | None = None) -> set[float]:
    flat = constant(client.layout, 0.0)
    await client.pull(flat, shards=shards, deadline_s=30)
    found = [client.layout.shards[index] for index in shards] if shards is not None else client.layout.shards
    return values_of([flat[shard.offset : shard.offset + shard.size] for shard in found])


async def test_a_client_that_pushes_goes_on_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stuck(91, tmp_path, monkeypatch) as (world, client):
        await recover(world)
        await add(client)
        assert client.rollbacks.numbers == LOST * len(client.layout.shards)
        assert await pulled(client) == {1.0}
        records = await world.records()
        assert all("recovered by an operator" in str(record.history) for record in records.values())
        await world.until_equal(2)


async def test_a_client_that_only_pulls_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is connected to the server already when that becomes the primary, and has told it nothing of these shards."""

    def all_on_the_last(layout: ParameterLayout, job: str, servers: list[str], copies: int) -> dict[int, Any]:
        return {bucket.index: tuple(reversed(servers)) for bucket in layout.buckets}

    monkeypatch.setattr("tests.roles.ps.replicated.place_copies", all_on_the_last)
    async with stuck(92, tmp_path, monkeypatch) as (world, client):
        layout = client.layout
        even = [shard.index for shard in layout.shards if layout.bucket_of_shard[shard.index] % 2 == 0]
        await recover(world, parity=0)
        assert await pulled(client, even) == {0.0}
        assert client.rollbacks.numbers == LOST * len(even)
        await recover(world, parity=1)
        assert await pulled(client) == {0.0}
        assert client.rollbacks.numbers == LOST * len(layout.shards)


async def test_one_that_comes_back_late_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stuck(93, tmp_path, monkeypatch) as (world, client):
        await recover(world)
        await add(client, 2.0)
        await world.start("ps-2", store=str(tmp_path))
        await world.until_records(lambda r: set(r.in_sync) == set(THREE) and not r.learners, "in sync again")
        assert await pulled(client) == {2.0}
        await world.until_equal()

"""A restored backup may have records of buckets that are older than what servers have on disk: nothing is freed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from adamctl.config.records import LEAP, BucketRecord, bucket_key, encode, served_key
from adamctl.roles.ps.replication.core.recovery import State, recovery
from adamctl.wire.messages import ConfigChanges
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import make_client, pulled
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.replication.copies import FAST, add, lose, storing, until_found, values_of, zeroed
from tests.roles.ps.store_cluster import until

TWO = ("ps-0", "ps-1")


async def trained(world: ReplicatedCluster, folder: Path, *servers: str, acks: str) -> None:
    """All values are 1, also on disk."""
    await world.start(*servers, store=folder, loss_window_s=0.1)
    await world.add_job(servers, copies=len(servers), min_in_sync=1, acks=acks)
    client = await zeroed(world)
    await add(client)
    await until(lambda: not any(storing(world, name).flush.unsaved_bytes for name in servers), "saved")
    await client.close()


@pytest.mark.parametrize("runs", [False, True])
async def test_a_server_that_a_restored_record_does_not_name_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """The bucket had moved to it since the backup, so that it may have the last copy."""
    async with memory_cluster(99, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await trained(world, tmp_path, *TWO, acks="replicated")
        await lose(world, "ps-0", monkeypatch)
        if not runs:
            await lose(world, "ps-1", monkeypatch)
            await asyncio.sleep(3.0)
        restored = {
            bucket_key("a", bucket): encode(BucketRecord(record.epoch + LEAP, "ps-8", ("ps-8", "ps-9")))
            for bucket, record in (await world.records()).items()
        }
        assert not (await cluster.client.compare_and_set(ConfigChanges({}, restored))).conflicts
        if not runs:
            await world.start("ps-1", store=tmp_path, loss_window_s=0.1)
        chosen = await until_found(world, State.STUCK, "ps-1")
        assert {(one.primary, one.given_up) for one in chosen} == {("ps-1", ("ps-8", "ps-9"))}
        for changes in recovery("a", chosen, 0.0):
            assert not (await cluster.client.compare_and_set(changes)).conflicts
        client = await make_client(cluster, "a", "again", attempt_s=2.0)
        assert values_of(await pulled(client)) == {1.0}
        await client.close()


@pytest.mark.parametrize("servers", [("ps-0",), TWO])
async def test_a_backup_of_before_the_first_push_does_not_make_what_was_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: tuple[str, ...]
) -> None:
    async with memory_cluster(100, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await trained(world, tmp_path, *servers, acks="durable")
        for name in servers:
            await lose(world, name, monkeypatch)
        await asyncio.sleep(3.0)
        restored = {
            bucket_key("a", bucket): encode(msgspec.structs.replace(record, epoch=record.epoch + LEAP))
            for bucket, record in (await world.records()).items()
        }
        served = tuple(served_key("a", name) for name in servers)
        assert not (await cluster.client.compare_and_set(ConfigChanges({}, restored, served))).conflicts
        await world.start(*servers, store=tmp_path, loss_window_s=0.1)
        client = await make_client(cluster, "a", "again", attempt_s=2.0)
        assert values_of(await pulled(client)) == {1.0}
        await client.close()

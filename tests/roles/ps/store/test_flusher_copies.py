"""Copies of buckets and the store: what a server writes of buckets that change hands, and what it keeps of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.roles.ps.core.exactly_once import MemoryRecord
from adamctl.roles.ps.core.flush import Entry, FlushConfig, FlushCore, Slot, Waiter
from adamctl.roles.ps.core.instructions import Holds
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.roles.ps.store.lmdb_log import LogStore
from adamctl.roles.ps.store.log_index import Holdings
from adamctl.roles.ps.store.record import Holding, JobIdentity, ShardState
from adamctl.roles.ps.store.recovered_jobs import FoundJob, FoundShard
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import constant, make_client, push_of
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.store_cluster import crash, until

FAST = ControllerConfig(beacon_interval_s=0.5, lost_after_s=2.5)
TWO = ("ps-0", "ps-1")
IDENTITY = JobIdentity("a", 5, "hash", "add")


async def test_a_server_without_a_store_that_joins_leaves_a_durable_job_alone(tmp_path: Path) -> None:
    """It is given no copy, and does not fail for clients what others serve."""
    async with memory_cluster(91, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path)
        layout = await world.add_job(TWO, copies=2, acks="durable", min_in_sync=1)
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        await world.start("ps-2")
        await world.cluster.kill("ps-1")  # so that a copy is missing, and the new one would be its place
        await world.until_records(lambda record: record.in_sync == ("ps-0",), "without the dead one")
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        await asyncio.sleep(3.0)
        assert not any("ps-2" in (*one.in_sync, *one.learners) for one in (await world.records()).values())
        job = world.servers["ps-2"].core.jobs.get("a")
        assert job is None or job.failed is None
        await world.start("ps-3", store=tmp_path)
        await world.until_records(lambda record: set(record.in_sync) == {"ps-0", "ps-3"}, "where there is a store")
        await client.close()


async def test_what_is_written_while_buckets_are_taken_over_names_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may begin as soon as the first of several buckets is taken over; the others' shards may be in it."""
    async with memory_cluster(90, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path, loss_window_s=60.0)
        layout = await world.add_job(TWO, copies=2, min_in_sync=1)
        taken = [index for index, record in (await world.records()).items() if record.primary == "ps-0"]
        assert len(taken) > 1
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        survivor = world.servers["ps-1"]
        storing = survivor._storing
        assert storing is not None
        storing.flush._retry_s = np.inf  # what is pushed now is to be dirty when the buckets are taken over
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        holds = survivor._carriers[Holds]

        def at_once(instruction: Holds) -> None:
            storing.flush.hurry()
            holds(instruction)

        survivor._carriers[Holds] = at_once
        await crash(cluster, "ps-0", monkeypatch)
        await world.until_records(lambda record: record.primary == "ps-1", "taken over")
        await client.close()
        await cluster.stop("ps-1")
    log = LogStore(tmp_path / "ps-1")
    try:
        shards = [record.description for record in log.found if isinstance(record.description, ShardState)]
        assert {state.job.name for state in shards} == {"a"}
        assert {state.shard for state in shards} == {shard.index for shard in layout.shards}
    finally:
        log.close()


async def test_what_was_read_from_the_store_is_counted_and_given_back(tmp_path: Path, monkeypatch) -> None:
    """A restarted server's copies come from the others: what it has read at its start is needed by nobody then."""
    async with memory_cluster(92, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path, loss_window_s=0.1)
        layout = await world.add_job(TWO, copies=2, min_in_sync=1)
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        await until(lambda: not any(one._storing.flush.unsaved_bytes for one in world.servers.values()), "saved")
        await crash(cluster, "ps-1", monkeypatch)
        await world.until_records(lambda record: record.in_sync == ("ps-0",), "without the dead one")
        await world.start("ps-1", store=tmp_path, loss_window_s=0.1)
        restarted = world.servers["ps-1"]
        assert restarted._storing is not None
        store = restarted._storing.store
        assert not store.loaded or restarted._keeper.memory.held_bytes >= restarted._storing.holdings.loaded_bytes > 0
        await world.until_records(lambda record: set(record.in_sync) == set(TWO), "whole again")
        assert not store.loaded
        await client.close()


async def test_records_of_copies_are_written_whatever_has_become_of_their_jobs_holding(tmp_path: Path) -> None:
    """One job that is in trouble must not stop the store of all others."""
    async with memory_cluster(93, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path, loss_window_s=0.1)
        layout = await world.add_job(TWO, copies=2, min_in_sync=1)
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        storing = world.servers["ps-1"]._storing
        assert storing is not None
        storing.holdings.release("a")
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        await until(lambda: not storing.flush.unsaved_bytes and storing.flush.group is None, "all is written")
        await client.close()


def found_copy() -> tuple[FlushCore, Holdings]:
    """What a log was found to hold of one bucket of two shards, and of nothing else."""
    slots = [Slot(number, 100, Entry(None, 100, IDENTITY)) for number in (1, 2, 3)]
    for slot in slots:
        assert slot.entry is not None
        slot.entry.sequence, slot.entry.record_bytes = slot.sequence, slot.size_bytes
    flush = FlushCore(FlushConfig(), slots, 4)
    entries = [slot.entry for slot in slots if slot.entry is not None]
    shards = {index: FoundShard(2 + index, entries[1 + index]) for index in (0, 1)}
    found = FoundJob(Holding(IDENTITY, {0: (1, 2)}), entries[0], shards)
    return flush, Holdings({IDENTITY: found}, {2: []}, flush, lambda: 0.0, lambda: None)


def test_a_copy_on_disk_stays_until_each_of_its_shards_is_there_anew() -> None:
    """A server that was away is filled again: should all others be lost meanwhile, that copy is all there is."""
    flush, holdings = found_copy()
    shards = [HeldShard(index, 100) for index in (0, 1)]
    holdings.keep(IDENTITY, 0, 7, shards)
    assert flush.live_bytes == 300 and not holdings.loaded_bytes
    copy = ShardCopy("a", 5, 0, 7, 3, 3, 8, (8,), MemoryRecord(), 0)
    shards[0].put(CopyRecord(copy, [np.zeros(8, np.float32)]))
    assert shards[0].entry is not None
    flush.changed(shards[0].entry, 0.0)
    flush.hurry()
    group = flush.take(1.0)
    assert group is not None
    owners = [item.entry.owner for item in group.items]
    assert shards[0] in owners and shards[1] not in owners
    for item in group.items:
        flush.taken(item)
    flush.finished([100] * len(group.items))
    assert flush.live_bytes == 300, "one shard in place of its older state, the other as it was"
    assert shards[1].entry is not None and shards[1].entry.sequence == 3 and shards[1].entry.owner is None


def test_a_bucket_has_come_from_another_server_unless_it_was_made_here() -> None:
    holdings = Holdings({}, {}, FlushCore(), lambda: 0.0, lambda: None)
    held = holdings.take(IDENTITY, {0: 1})
    for bucket in (0, 1):
        holdings.keep(IDENTITY, bucket, 1, [HeldShard(bucket, 100)])
    assert held.received == {1}
    holdings.let_go(IDENTITY, 1, {1: Entry(None, 100, IDENTITY)})
    assert holdings.found[IDENTITY].holding.received == held.received == {1}, "as long as it is on disk"
    holdings.keep(IDENTITY, 1, 2, [HeldShard(1, 100)])
    assert not holdings.found and held.received == {1}
    holdings.let_go(IDENTITY, 1)
    assert not held.received
    holdings.keep(IDENTITY, 1, 3, [HeldShard(1, 100)])
    assert held.received == {1}
    holdings.take(IDENTITY, {1: 4})
    assert not held.received, "it is made as the job began"


def test_a_copy_gets_no_place_in_the_log_that_was_freed() -> None:
    """It would never be written, and count as written at once."""
    flush, holdings = found_copy()
    read = {index: one.entry for index, one in holdings.found[IDENTITY].shards.items()}
    holdings.free(IDENTITY, 0, read)
    shards = [HeldShard(index, 100) for index in (0, 1)]
    shards[1].entry = read[1]
    holdings.keep(IDENTITY, 0, 7, shards, read)
    places = [shard.entry for shard in shards]
    assert all(place is not None and not place.gone for place in places)
    waiter = Waiter(None)
    for place in places:
        assert place is not None
        flush.changed(place, 0.0)
        flush.wait(waiter, place, place.changes)
    assert waiter.missing == 2

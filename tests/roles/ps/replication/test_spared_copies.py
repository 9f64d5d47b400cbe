"""A server that is no member of a bucket any more keeps what it has on disk as long as copies are missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adamctl.config.records import BucketRecord, bucket_key, decode, encode
from adamctl.model.layout import cut_layout
from adamctl.roles.ps.core.flush import Entry, FlushCore
from adamctl.roles.ps.core.instructions import Propose
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.roles.ps.replication.core.recovery import State, recovery
from adamctl.roles.ps.store.log_index import Holdings
from adamctl.roles.ps.store.record import Holding, JobIdentity
from adamctl.roles.ps.store.recovered_jobs import FoundJob, FoundShard
from adamctl.wire.messages import ConfigChanges
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import constant, make_client, make_tensors, push_of
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.replication.copies import FAST, replace_second, storing, stuck
from tests.roles.ps.store_cluster import crash, until

TWO = ("ps-0", "ps-1")


def kept(world: ReplicatedCluster, name: str) -> int:
    return sum(storing(world, name).status()["copies_kept"].values())


async def saved(world: ReplicatedCluster) -> None:
    await until(lambda: not any(storing(world, name).flush.unsaved_bytes for name in world.servers), "saved")


async def test_a_copy_stays_on_disk_until_as_many_servers_hold_the_bucket_as_should(tmp_path: Path) -> None:
    async with memory_cluster(94, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path, loss_window_s=0.1)
        layout = await world.add_job(TWO, copies=2, min_in_sync=1)
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        await saved(world)
        live_bytes = sum(storing(world, name).flush.live_bytes for name in TWO)
        await world.start("ps-2", store=tmp_path, loss_window_s=0.1)
        new = world.servers["ps-2"]
        await until(lambda: new._keeper.replicating is not None, "it is a member")
        answers, new._keeper.replicating.requested = new._keeper.replicating.requested, lambda request: None  # type: ignore
        await replace_second(world, "ps-2")
        buckets = len(layout.buckets)
        await until(lambda: kept(world, "ps-0") + kept(world, "ps-1") == buckets, "what is let go is kept on disk")
        held = [world.copy(name, bucket) for name in TWO for bucket in range(buckets)]
        assert not any(held), "in memory there is nothing of it"
        assert sum(storing(world, name).flush.live_bytes for name in TWO) >= live_bytes, "it is accounted for"
        told = [world.servers[name].status()["replication"]["jobs"]["a"]["kept"] for name in TWO]
        assert sorted(bucket for one in told for bucket in one) == list(range(buckets))
        new._keeper.replicating.requested = answers  # type: ignore
        await world.until_records(lambda record: len(record.in_sync) == 2, "whole again")
        await until(lambda: not kept(world, "ps-0") + kept(world, "ps-1"), "freed")
        await client.close()


async def test_an_operator_may_go_on_with_the_copy_of_a_server_that_is_no_member_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(95, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start("ps-0", "ps-1", store=tmp_path, loss_window_s=0.1)
        layout = await world.add_job(TWO, copies=2, min_in_sync=1)
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        await saved(world)
        records = await world.records()
        ours = [bucket for bucket, record in records.items() if record.primary == "ps-0"]
        before = {bucket: world.states(bucket)["ps-0"] for bucket in ours}
        for name in TWO:
            world.servers[name]._carriers[Propose] = lambda proposal: None  # nobody is taken in
        await replace_second(world, "ps-9")
        await until(lambda: kept(world, "ps-1") >= len(ours), "kept on disk")
        await crash(cluster, "ps-0", monkeypatch)
        del world.servers["ps-0"]
        async with asyncio.timeout(60):
            while any(one.state is not State.NOBODY for one in await stuck(world) if one.bucket in ours):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        found = await stuck(world)
        mine = [one for one in found if one.bucket in ours]
        assert all([node for node, _ in one.former] == ["ps-1"] for one in mine)
        chosen = [one for one in await stuck(world, "ps-1") if one.bucket in ours]
        assert all((one.state, one.primary, one.given_up) == (State.STUCK, "ps-1", ("ps-0",)) for one in chosen)
        for changes in recovery("a", chosen, 0.0):
            assert not (await cluster.client.compare_and_set(changes)).conflicts
        job = world.servers["ps-1"].core.jobs["a"]
        await until(lambda: all(bucket in job.buckets for bucket in ours), "served")
        assert {bucket: world.states(bucket)["ps-1"] for bucket in ours} == before
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=30)
        await client.close()


def entry_on_disk(flush: FlushCore) -> Entry:
    """One shard with a record, and a change that is in none."""
    entry = Entry(object(), 100)
    flush.changed(entry, 0.0)
    flush.hurry()
    group = flush.take(1.0)
    assert group is not None
    flush.taken(group.items[0])
    group.items[0].version = (1, 2, 3)
    flush.finished([100])
    flush.changed(entry, 2.0)
    return entry


def test_what_is_spared_owes_nothing_to_the_loss_window_and_is_copied_when_the_log_is_compacted() -> None:
    flush = FlushCore()
    entry = entry_on_disk(flush)
    assert flush.unsaved_bytes == 100
    entry.spared = True
    flush.leave(entry)
    assert not flush.unsaved_bytes and not flush.busy and flush.live_bytes == 100
    assert entry.owner is None and entry.version == (1, 2, 3)
    flush.forget(entry)
    assert not flush.live_bytes


def test_a_spared_shard_whose_state_is_being_written_keeps_its_owner_until_then() -> None:
    """The group under way asks the owner for its state; afterwards nothing of it stays in memory."""
    flush = FlushCore()
    entry = entry_on_disk(flush)
    flush.hurry()
    group = flush.take(3.0)
    assert group is not None and entry.flying
    entry.spared = True
    flush.leave(entry)
    assert entry.owner is not None and not flush.unsaved_bytes
    flush.taken(group.items[0])
    flush.finished([120])
    assert entry.owner is None and flush.live_bytes == 120 and not flush.unsaved_bytes and not flush.busy


def test_a_push_that_ends_after_its_shard_was_let_go_writes_nothing() -> None:
    """Nobody is there to ask for the state (simulated servers, seed 570)."""
    flush = FlushCore()
    entry = entry_on_disk(flush)
    entry.spared = True
    flush.leave(entry)
    flush.changed(entry, 3.0)
    flush.hurry()
    assert not flush.busy and flush.take(4.0) is None and not flush.unsaved_bytes


@pytest.mark.parametrize("full", [False, True])
def test_a_spared_shard_is_not_written_again_after_a_full_disk(full: bool) -> None:
    flush = FlushCore()
    entry = entry_on_disk(flush)
    flush.hurry()
    assert flush.take(3.0) is not None
    entry.spared = full
    if full:
        flush.leave(entry)
    flush.no_space(4.0)
    assert flush.busy is not full and flush.live_bytes == 100


async def change(world: ReplicatedCluster, **fields: Any) -> None:
    """Changes all records of buckets at once, as another server might: names of fields -> functions of the record."""
    store = world.cluster.client
    _, entries = await store.read("/jobs/a/buckets/")
    for index, entry in enumerate(entries):
        record = decode(entry.value, BucketRecord)
        wanted = {name: value(record) for name, value in fields.items()}
        changed = msgspec.structs.replace(record, epoch=record.epoch + 1, **wanted)
        key = bucket_key("a", index)
        assert not (await store.compare_and_set(ConfigChanges({key: entry.revision}, {key: encode(changed)}))).conflicts


def other(node: str) -> str:
    return TWO[1 - TWO.index(node)]


@pytest.mark.parametrize("demoted", ["primary", "second"])
async def test_a_copy_that_is_filled_again_and_begun_anew_keeps_its_records_until_the_new_ones_are_there(
    tmp_path: Path, demoted: str
) -> None:
    """A member that is a learner now; while it is being filled it loses its part and is given it again."""
    async with memory_cluster(96, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path, loss_window_s=0.1)
        layout = await world.add_job(TWO, copies=2, min_in_sync=1)
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        await saved(world)
        owed: list[tuple[Any, Propose]] = []
        carriers = {name: world.servers[name]._carriers for name in TWO}
        propose = {name: carriers[name][Propose] for name in TWO}
        for name in TWO:
            carriers[name][Propose] = lambda proposal, name=name: owed.append((propose[name], proposal))
        live_bytes = {name: shard_bytes(world, name) for name in TWO}
        records = await world.records()
        if demoted == "primary":
            await change(
                world,
                primary=lambda r: other(r.primary),
                in_sync=lambda r: (other(r.primary),),
                learners=lambda r: (r.primary,),
            )
        else:
            await change(world, in_sync=lambda r: (r.primary,), learners=lambda r: (other(r.primary),))
        learner = {b: r.primary if demoted == "primary" else other(r.primary) for b, r in records.items()}

        def filling(epoch: int) -> bool:
            assert {name: shard_bytes(world, name) for name in TWO} == live_bytes
            copies = [world.copy(name, bucket) for bucket, name in learner.items()]
            return all(copy is not None and not copy.complete and copy.begun[0] == epoch for copy in copies)

        await until(lambda: filling(2), "it is being filled")
        await change(world, learners=lambda r: ())
        await until(lambda: kept(world, "ps-0") + kept(world, "ps-1") == len(learner), "it has no part for a while")
        await change(world, learners=lambda r: (other(r.primary),))
        await until(lambda: filling(4), "all begins anew")
        for name in TWO:
            carriers[name][Propose] = propose[name]
        for carry, proposal in owed:
            carry(proposal)
        await world.until_records(lambda record: len(record.in_sync) == 2, "whole again")
        await world.until_equal(2)
        await saved(world)
        assert {name: shard_bytes(world, name) for name in TWO} == live_bytes and not kept(world, "ps-0")
        await client.close()


def shard_bytes(world: ReplicatedCluster, name: str) -> int:
    """Bytes of memory that the shards take whose records are live in a server's log."""
    flush = storing(world, name).flush
    slots = [*flush._slots, *(flush.group.removed if flush.group is not None else ())]  # those go with the group
    live = {slot.entry for slot in slots if slot.live and slot.entry is not None}
    return sum(entry.size_bytes for entry in live if entry.version != (0, 0, 0))


def test_what_was_found_of_other_buckets_stays_when_some_are_resumed() -> None:
    """The core asks for it when nobody has them in memory (simulated servers, seed 4727)."""
    flush, identity, layout = FlushCore(), JobIdentity("a", 1, "hash", "sgd"), cut_layout(make_tensors(), 1)
    first, second = layout.buckets[:2]
    places = {index: Entry(None, 100, identity) for index in range(first.shard_start, second.shard_stop)}
    for index, place in places.items():
        place.sequence, place.record_bytes = index + 1, 100
    found = FoundJob(Holding(identity, {0: (1, 1), 1: (1, 1)}), Entry(None, 256, identity))
    found.shards = {index: FoundShard(place.sequence, place) for index, place in places.items()}
    holdings = Holdings({identity: found}, {}, flush, lambda: 0.0, lambda: None)
    found.shards[first.shard_start].sequence, found.holding.buckets[0] = 1, (1, 2)
    mine = {index: places[index] for index in range(first.shard_start + 1, first.shard_stop)}
    held = [HeldShard(index, 8) for index in range(first.shard_start, first.shard_stop)]
    holdings.keep(identity, 0, 2, held, mine)
    assert holdings.found == {identity: found} and set(found.holding.buckets) == {1}
    assert set(found.shards) == set(range(second.shard_start, second.shard_stop))
    assert places[first.shard_start].gone and not any(place.gone for place in mine.values())
    holdings.free_found(identity, [second])
    assert not holdings.found and all(place.gone for place in places.values() if place not in mine.values())

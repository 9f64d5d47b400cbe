"""A bucket that came from another server, of which only a part is on disk, is never taken for one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adamctl.roles.ps.core.instructions import Propose
from adamctl.roles.ps.replication.core.recovery import State, recovery
from adamctl.roles.ps.store.lmdb_log import LogStore, NoSpaceError, Writing
from adamctl.roles.ps.store.record import ShardState
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import make_client, pulled
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.replication.copies import FAST, add, lose, replace_second, storing, until_found, values_of, zeroed
from tests.roles.ps.store_cluster import until

TWO = ("ps-0", "ps-1")
MANY = ((4,),) * 60
"""Shapes: three shards to a bucket."""


def fill_disk_of(folder: Path, patch: pytest.MonkeyPatch, shards_max: int) -> list[int]:
    """A store's disk has room for holdings and so many shards; returns a list of the shards that are written."""
    write, written = LogStore.write, list[int]()

    def limited(store: LogStore, writings: Sequence[Writing], *rest: Any) -> list[int]:
        shards = [one.description.shard for one in writings if isinstance(one.description, ShardState)]
        if store.folder == folder and len(written) + len(shards) > shards_max:
            raise NoSpaceError("No space left on device")
        written.extend(shards if store.folder == folder else ())
        return write(store, writings, *rest)

    patch.setattr(LogStore, "write", limited)
    return written


async def start_learner(world: ReplicatedCluster, folder: Path) -> None:
    await world.start("ps-2", store=folder, loss_window_s=0.1)
    flush = storing(world, "ps-2").flush
    flush.config = replace(flush.config, group_bytes=1)  # one record each


async def test_a_learner_that_was_restarted_before_all_had_come_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that were still to come are not those that the job began with."""
    async with memory_cluster(97, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path, loss_window_s=0.1)
        await world.add_job(TWO, copies=2, min_in_sync=1, shapes=MANY)
        client = await zeroed(world)
        await add(client)
        with monkeypatch.context() as patch:
            written = fill_disk_of(tmp_path / "ps-2", patch, 1)
            world.servers["ps-0"]._carriers[Propose] = lambda proposal: None  # nobody is taken in
            world.servers["ps-1"]._carriers[Propose] = lambda proposal: None
            await start_learner(world, tmp_path)
            await replace_second(world, "ps-2")
            await until(lambda: written, "one shard is on disk")
            for name in ("ps-2", *TWO):
                await lose(world, name, monkeypatch)
        await client.close()
        await world.start("ps-2", store=tmp_path)
        found = await until_found(world, State.NOBODY, "ps-2")
        assert not any(one.former or one.holders for one in found)


async def test_a_copy_that_came_while_the_disk_was_full_is_gone_with_its_process_and_an_older_one_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a copy is in sync; once it is the only one, what its disk lacks must not begin anew in silence."""
    async with memory_cluster(98, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start(*TWO, store=tmp_path, loss_window_s=0.1)
        await world.add_job(TWO, copies=2, min_in_sync=1, shapes=((1, 8),))
        client = await zeroed(world)
        await add(client)
        await until(lambda: not any(storing(world, name).flush.unsaved_bytes for name in TWO), "saved")
        with monkeypatch.context() as patch:
            fill_disk_of(tmp_path / "ps-2", patch, 0)
            await start_learner(world, tmp_path)
            await lose(world, "ps-1", monkeypatch)
            await world.until_records(lambda record: set(record.in_sync) == {"ps-0", "ps-2"}, "a copy in memory")
            await lose(world, "ps-0", monkeypatch)
            await world.until_records(lambda record: record.in_sync == ("ps-2",), "the only copy")
            await lose(world, "ps-2", monkeypatch)
        await world.start("ps-2", store=tmp_path)
        jobs = world.servers["ps-2"].core.jobs
        await until(lambda: "a" in jobs and (jobs["a"].failed or jobs["a"].buckets), "it has looked")
        assert jobs["a"].failed is not None and "no longer has bucket" in jobs["a"].failed[1]
        await world.start("ps-0", store=tmp_path)
        chosen = await until_found(world, State.STUCK, "ps-0")
        assert {(one.primary, one.given_up) for one in chosen} == {("ps-0", ("ps-2",))}
        for changes in recovery("a", chosen, 0.0):
            assert not (await cluster.client.compare_and_set(changes)).conflicts
        other = await make_client(cluster, "a", "again", attempt_s=2.0)
        assert values_of(await pulled(other)) == {1.0}
        await other.close()
        await client.close()

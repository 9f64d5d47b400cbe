"""Copies of buckets and the store: what a server writes of buckets that change hands, and what it keeps of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from adamctl.roles.controller.core import ControllerConfig
from adamctl.roles.ps.core_replication_events import Holds
from adamctl.roles.ps.log_record import ShardState
from adamctl.roles.ps.store import LogStore
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import constant, make_client, push_of
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.store_cluster import crash

FAST = ControllerConfig(beacon_interval_s=0.5, lost_after_s=2.5)
TWO = ("ps-0", "ps-1")


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

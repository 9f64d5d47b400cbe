"""A server that is told to end moves off what it holds first, and says what it could not."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord
from adamctl.errors import RunFailedError
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.leaving import described, still_held
from adamctl.wire.messages import ShutdownRequest
from tests.cluster import ClusterInMemory, memory_cluster
from tests.roles.ps.ps_cluster import constant, make_client, make_tensors, push_of, views
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.store_cluster import until

FAST = ControllerConfig(beacon_interval_s=0.25, lost_after_s=1.25)


def test_what_is_held_is_told_by_what_nobody_else_has() -> None:
    record = JobRecord("running", "hash", RuleConfig("add"), 1)
    buckets = {
        0: BucketRecord(1, "a"),
        1: BucketRecord(1, "b", ("b", "a")),
        2: BucketRecord(1, "b", ("b",), ("a",)),
        3: BucketRecord(1, "b", ("b", "c")),
    }
    view = JobView(record, LayoutRecord(make_tensors(), 1).layout(), buckets, 1, {})
    held = still_held({"one": view}, "a")
    assert held == {"one": {0: (), 1: ("b",), 2: ("b",)}}
    assert described(held) == "job one: no other server has bucket 0; job one: buckets 1-2 of it, in sync on others too"
    assert described(still_held({"one": view}, "d")) == ""


async def left(cluster: ClusterInMemory, node: str, drain_s: float) -> tuple[int, RunFailedError | None]:
    """Ends a node with a drain; returns its exit code and what it failed with."""
    context = cluster.contexts[node]
    context.exit_code = 143
    context.stop("a test says so", drain_s=drain_s)
    await until(lambda: cluster.tasks[node].done(), "it ends")
    failure = context.failure
    assert failure is None or isinstance(failure, RunFailedError)
    await cluster.stop(node)
    return context.exit_code, failure


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_server_that_ends_hands_everything_over_and_nothing_is_lost(copies: int) -> None:
    async with memory_cluster(71, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start("ps-0", "ps-1", "ps-2")
        layout = await world.add_job(["ps-0", "ps-1"], copies=copies, acks="applied", min_in_sync=1)
        client = await make_client(cluster, "a", "worker-1", attempt_s=1.0)
        before, after = constant(layout, 0.0), constant(layout, 0.0)
        await client.pull(before, deadline_s=20)
        await client.push(push_of(layout, constant(layout, 2.0), kind="delta"), deadline_s=20)
        code, failure = await left(cluster, "ps-0", 30.0)
        assert (code, failure) == (0, None)
        for record in (await world.records()).values():
            assert "ps-0" not in (record.primary, *record.in_sync, *record.learners)
        await client.pull(after, deadline_s=20)
        for had, has in zip(views(layout, before), views(layout, after), strict=True):
            np.testing.assert_array_equal(has, had + 2.0)
        await client.close()


@pytest.mark.parametrize("lags", [False, True])
async def test_what_cannot_be_moved_is_said_and_nobody_is_waited_for(lags: bool) -> None:
    """Also where the server has not heard yet of the job that it is to serve."""
    async with memory_cluster(72, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start("ps-0")
        await world.add_job(["ps-0"], copies=1, acks="applied", min_in_sync=1)
        if lags:
            await until(lambda: "ps-0" in world.servers, "it has begun")
            world.servers["ps-0"]._keeper.views = dict  # type: ignore[assignment,method-assign]
        code, failure = await left(cluster, "ps-0", 3600.0)
        assert failure is not None and "job a: no other server has bucket" in str(failure) and code == 0


async def test_who_is_leaving_serves_on_and_is_not_ready_and_ends_with_its_deadline() -> None:
    """The other server has no room, so that nothing can be moved."""
    async with memory_cluster(73, config=FAST) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start("ps-0")
        await world.start("ps-1", memory="1KB")
        layout = await world.add_job(["ps-0"], copies=1, acks="applied", min_in_sync=1, shapes=((400, 40),))
        client = await make_client(cluster, "a", "worker-1", attempt_s=1.0)
        operator = await cluster.context("operator", "operator-1")
        connection = await operator.connect("ps-0", 5.0)
        await connection.request(ShutdownRequest("the host goes away", 2.0), deadline_s=5.0)
        context = cluster.contexts["ps-0"]
        await until(lambda: context.leaving, "it is leaving")
        await client.pull(constant(layout, 0.0), deadline_s=20)
        await until(lambda: cluster.tasks["ps-0"].done(), "it ends")
        assert context.failure is not None and context.failure.exit_code == 1
        await connection.close()
        await client.close()

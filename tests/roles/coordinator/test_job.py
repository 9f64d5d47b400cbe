"""A job that has ended: what is left of it with the controllers, and that its servers free it."""

from __future__ import annotations

import asyncio

from adamctl.config.records import JobRecord, decode, job_key, layout_key
from adamctl.net.handshake import make_hello
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.coordinator.job import end_job
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import COORDINATOR
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.store_cluster import until


async def test_of_a_job_that_its_coordinator_has_ended_two_keys_are_left() -> None:
    """Else a cluster in which runs come and go is full one day."""
    async with memory_cluster(101) as cluster:
        world = ReplicatedCluster(cluster)
        await world.start("ps-0", "ps-1")
        await world.add_job(("ps-0", "ps-1"), copies=2)
        while sum("/served/" in entry.key for entry in (await cluster.client.read("/jobs/a"))[1]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        hello = make_hello("coordinator", COORDINATOR)
        store = ControllerClient(cluster.network, ["memory://controller-0"], lambda: hello, session="c")  # type: ignore
        await end_job(store, "a", ours=True)
        await until(lambda: not any(one.core.jobs for one in world.servers.values()), "freed")
        _, entries = await store.read("/jobs/")
        left = {entry.key: entry.value for entry in entries}
        assert left.keys() == {job_key("a"), layout_key("a")}
        assert decode(left[job_key("a")], JobRecord).state == "ended"
        await end_job(store, "a", ours=True)
        await store.close()

"""A fourth server comes under load, then the first is drained (I11, I12): nothing lost, never fewer than two copies."""

from __future__ import annotations

import asyncio
import time

from adamctl.bench.failover.cluster import FailoverCluster, buckets_of
from adamctl.config.records import BucketRecord, DrainRecord, NodeRecord, decode, drain_key, encode, node_key
from adamctl.roles.configuration import follow, read_record
from adamctl.wire.messages import ConfigChanges
from tests.faults.servers_under_fire import JOB, Fire
from tests.faults.tended_servers import COPIES, QUICK_LEASE_S

MOVED_S = 120.0


class Records:
    """Everything that the records of buckets ever were, from now on."""

    def __init__(self, fire: Fire) -> None:
        self._fire = fire
        self.seen: list[BucketRecord] = []
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for changes in follow(self._fire.store, f"/jobs/{JOB}/buckets/"):
            self.seen += [decode(entry.value, BucketRecord) for entry in changes.entries]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def until(fire: Fire, wanted) -> None:
    """Returns when the records of all buckets are as wanted."""
    async with asyncio.timeout(MOVED_S):
        while not wanted(list((await buckets_of(fire.store, JOB)).values())):
            fire.check_clients()
            await asyncio.sleep(0.05)


async def drain(fire: Fire, node: str) -> None:
    found = await read_record(fire.store, node_key(node), NodeRecord)
    assert found is not None
    record = encode(DrainRecord(found[0].incarnation, time.time()))
    assert not (
        await fire.store.compare_and_set(ConfigChanges({drain_key(node): 0}, {drain_key(node): record}))
    ).conflicts


async def test_a_fourth_server_comes_and_the_first_is_drained() -> None:
    with FailoverCluster(COPIES, QUICK_LEASE_S, spare=1) as cluster:
        fire = Fire(cluster, 2)
        records = None
        try:
            await fire.open()
            records = Records(fire)
            await fire.progress(5)
            await asyncio.to_thread(cluster.start, "ps-4")
            await asyncio.to_thread(cluster.wait_serving, "ps-4")
            count = len(fire.layout.buckets)
            await until(
                fire, lambda found: sum("ps-4" in record.in_sync for record in found) >= count * COPIES // 4 - 2
            )
            await fire.progress(5)
            await drain(fire, "ps-1")
            await until(fire, lambda found: not any("ps-1" in (*r.in_sync, *r.learners) for r in found))
            await fire.progress(5)
            await fire.check()
            assert min(len(record.in_sync) for record in records.seen) >= 2
            assert all(len(record.in_sync) == COPIES for record in (await buckets_of(fire.store, JOB)).values())
            cluster.kill("ps-1")  # nobody misses it
            await fire.progress(5)
            await fire.check()
        finally:
            if records is not None:
                await records.close()
            await fire.close()

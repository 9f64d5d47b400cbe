"""Jobs with copies on a cluster in memory: who holds what, and whether it is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    bucket_key,
    decode,
    encode,
    job_key,
    layout_key,
)
from adamctl.model.layout import ParameterLayout
from adamctl.model.placement import place_copies
from adamctl.model.rule import RuleConfig
from adamctl.roles.context import RoleContext
from adamctl.roles.ps import server
from adamctl.roles.ps.replication.core.held_bucket import HeldCopy
from adamctl.wire.messages import ConfigChanges
from tests.cluster import ClusterInMemory
from tests.roles.ps.ps_cluster import COORDINATOR, SMALL, make_tensors

PATIENCE_S = 60.0


class ReplicatedCluster:
    """Parameter servers on a cluster in memory, and a job `a` with copies of its buckets on them."""

    def __init__(self, cluster: ClusterInMemory) -> None:
        self.cluster = cluster
        self.servers: dict[str, server.ParameterServer] = {}
        self.layout: ParameterLayout

    async def start(self, *names: str, **options: Any) -> None:
        """Starts servers, or starts them again."""
        for name in names:

            async def run(context: RoleContext, name: str = name) -> None:
                chosen = server.server_options(context.options)
                store = await asyncio.to_thread(server.LogStore, chosen.store) if chosen.store is not None else None
                self.servers[name] = server.ParameterServer(context, chosen, store)
                try:
                    await self.servers[name].run()
                finally:
                    if store is not None:
                        store.close()

            own = {"store": f"{options['store']}/{name}"} if "store" in options else {}
            await self.cluster.start("ps", name, run, {"apply_threads": "1", **options, **own})

    async def kill(self, name: str) -> None:
        del self.servers[name]
        await self.cluster.kill(name)

    async def add_job(
        self,
        servers: Sequence[str],
        rule: RuleConfig | None = None,
        *,
        copies: int = 3,
        acks: Any = "replicated",
        min_in_sync: int = 2,
        shapes: Sequence[tuple[int, ...]] = SMALL,
    ) -> ParameterLayout:
        """Writes the keys of job `a` as a coordinator does."""
        record = LayoutRecord(make_tensors(shapes), len(servers))
        layout = self.layout = record.layout()
        described = JobRecord(
            "running", layout.hash, rule or RuleConfig("add"), 3, COORDINATOR, "", acks, copies, min_in_sync
        )
        puts = {job_key("a"): encode(described), layout_key("a"): encode(record)}
        for bucket, members in place_copies(layout, "a", list(servers), copies).items():
            puts[bucket_key("a", bucket)] = encode(BucketRecord(1, members[0], members))
        reply = await self.cluster.client.compare_and_set(ConfigChanges({}, puts))
        assert not reply.conflicts
        return layout

    async def records(self) -> dict[int, BucketRecord]:
        _, entries = await self.cluster.client.read("/jobs/a/buckets/")
        return {index: decode(entry.value, BucketRecord) for index, entry in enumerate(entries)}

    async def until_records(self, condition: Callable[[BucketRecord], bool], what: str) -> dict[int, BucketRecord]:
        """Waits until all records of buckets are as they should be."""
        found: dict[int, BucketRecord] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not found or not all(condition(record) for record in found.values()):
                    await asyncio.sleep(0.02)
                    found = await self.records()
        except TimeoutError:
            wrong = {
                index: (record.epoch, record.primary, record.in_sync, record.learners, record.why)
                for index, record in found.items()
                if not condition(record)
            }
            raise AssertionError(f"not {what}: {wrong}") from None
        return found

    def copy(self, name: str, bucket: int) -> HeldCopy | None:
        """Returns what a server holds of a bucket for its primary."""
        replicating = self.servers[name]._keeper.replicating
        return replicating.core.copies("a").get(bucket) if replicating is not None else None

    def states(self, bucket: int) -> dict[str, dict[int, tuple[Any, ...]]]:
        """Returns what each server holds of a bucket: shard -> (counter, pushes, bytes of values and state)."""
        held: dict[str, dict[int, tuple[Any, ...]]] = {}
        described = self.layout.buckets[bucket]
        for name, one in self.servers.items():
            job = one.core.jobs.get("a")
            copy = self.copy(name, bucket)
            if job is not None and bucket in job.buckets:
                shards = [job.shards[index] for index in range(described.shard_start, described.shard_stop)]
                held[name] = {
                    shard.index: (shard.counter, shard.pushes, *_bytes(shard.values.array, *shard.state.arrays))
                    for shard in shards
                }
            elif copy is not None:
                held[name] = {
                    index: (shard.copy.counter, shard.copy.pushes, *_bytes(*shard.arrays))
                    for index, shard in copy.shards.items()
                    if shard.copy is not None
                }
        return held

    async def until_equal(self, copies: int = 3) -> None:
        """Waits until each bucket is held as often as it should be, with the same bytes everywhere (I6)."""

        def equal() -> bool:
            for bucket in self.layout.buckets:
                states = list(self.states(bucket.index).values())
                whole = [state for state in states if len(state) == bucket.shard_stop - bucket.shard_start]
                if len(whole) < copies or any(state != whole[0] for state in states):
                    return False
            return True

        try:
            async with asyncio.timeout(PATIENCE_S):
                while not equal():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            held = {bucket.index: sorted(self.states(bucket.index)) for bucket in self.layout.buckets}
            raise AssertionError(f"copies are not equal; held: {held}") from None


def _bytes(*arrays: np.ndarray) -> tuple[bytes, ...]:
    return tuple(np.ascontiguousarray(array).tobytes() for array in arrays)

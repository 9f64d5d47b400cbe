"""A server that was stopped for two leases and wakes up as a stale primary: its every write is refused (I1, I2)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from adamctl.net.stream import StreamTransport
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.wire.messages import ConfigEntry
from tests.faults.servers_under_fire import JOB, Fire, Progress, hello, under_fire
from tests.faults.tended_servers import QUICK_LEASE_S, SHORT_LEASE_S

ROUNDS = 500
BLOCK = 25
AWAKE_S = 0.5
PUSHES = 3


class Memory:
    """A configuration service that stands still: what it said of the job and of the nodes when it was made."""

    def __init__(self, revision: int, entries: list[ConfigEntry]) -> None:
        self._revision, self._entries = revision, entries

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        return self._revision, [entry for entry in self._entries if entry.key.startswith(prefix)]


async def a_round(fire: Fire, number: int, lease_s: float) -> None:
    """Stops a primary with a client bound to it that learns nothing, wakes it, and looks that it takes nothing."""
    revision, jobs = await fire.store.read("/jobs/")
    _, nodes = await fire.store.read("/nodes/")
    behind = ParameterClient(
        StreamTransport(), hello("behind", 1000 + number), Memory(revision, [*jobs, *nodes]), JOB, attempt_s=60.0
    )
    await behind.attach(deadline_s=30)
    node = sorted(set(behind.routing.primary))[number % len(set(behind.routing.primary))]
    buckets = [bucket for bucket in fire.layout.buckets if behind.routing.primary[bucket.index] == node]
    ours = [shard.index for bucket in buckets for shard in fire.layout.shards_of(bucket)]
    fire.cluster.stop(node)
    try:
        for _ in range(PUSHES):  # they wait in the stopped server's socket
            behind.start_push(push_to(fire, ours))
        await asyncio.sleep(2 * lease_s)
        await fire.progress(2)
    finally:
        fire.cluster.go_on(node)
    await asyncio.sleep(AWAKE_S)
    unanswered = [delivery.unanswered & set(ours) for delivery in behind._session.pushes.values()]
    assert unanswered == [set(ours)] * PUSHES, f"the stale primary {node} acknowledged something"
    await behind.close()


def push_to(fire: Fire, shards: list[int]) -> PushSet:
    """Returns a push that changes these shards only: it adds 0 to all others, which other servers may take."""
    flat = np.zeros(fire.layout.flat_size, np.float32)
    for index in shards:
        shard = fire.layout.shards[index]
        flat[shard.offset : shard.offset + shard.size] = 1.0
    push = PushSet(fire.layout, 1.0)
    for number, tensor in enumerate(fire.layout.tensors):
        push.delta(number, flat[tensor.offset : tensor.offset + tensor.size])
    return push


async def rounds(count: int, first: int, lease_s: float) -> None:
    async with under_fire(lease_s) as fire:
        for number in range(first, first + count):
            await a_round(fire, number, lease_s)
            await fire.whole()
        await fire.progress(2)
        await fire.check()


@pytest.mark.slow
async def test_a_stale_primary_takes_nothing() -> None:
    """Ten simulated ones are in the quick suite: tests/sim/servers/test_servers.py."""
    await rounds(1, 1, QUICK_LEASE_S)


@pytest.mark.slow
async def test_500_stale_primaries_take_nothing() -> None:
    """Goes on from the file that ADAMCTL_STALE_PROGRESS names, if that is set."""
    progress = Progress("ADAMCTL_STALE_PROGRESS")
    for done in range(progress.done, ROUNDS, BLOCK):
        await rounds(BLOCK, done + 1, SHORT_LEASE_S)
        progress.reached(done + BLOCK)

"""Jobs and clients for tests of parameter servers, on the in-memory cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, encode, job_key, layout_key
from adamctl.model.layout import Distribution, ParameterLayout, Tensor, cut_layout
from adamctl.model.placement import place_copies
from adamctl.model.rule import RuleConfig
from adamctl.net.testing.faults import LinkFaults
from adamctl.roles.context import RoleContext
from adamctl.roles.ps import server
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.wire.messages import CheckpointFile, ConfigChanges
from tests.cluster import ClusterInMemory, memory_cluster

TWO = ("ps-0", "ps-1")
SMALL = ((12, 8), (12,), (5, 12), (5,))


def make_layout(shapes: Sequence[tuple[int, ...]] = SMALL, servers: int = 1) -> ParameterLayout:
    """A layout of two dense layers (or whatever shapes), cut for a number of servers."""
    return cut_layout(make_tensors(shapes), servers)


def make_tensors(
    shapes: Sequence[tuple[int, ...]] = SMALL, distribution: Distribution = "normal"
) -> tuple[Tensor, ...]:
    tensors, offset = [], 0
    for index, shape in enumerate(shapes):
        size = int(np.prod(shape))
        tensors.append(Tensor(f"t{index}", index // 2, shape, offset, distribution, 0.5))
        offset = -(-(offset + size) // 16) * 16
    return tuple(tensors)


COORDINATOR = "c-0"
"""Of every job, unless a test says otherwise."""


async def add_job(
    cluster: ClusterInMemory,
    job: str,
    servers: Sequence[str],
    rule: RuleConfig,
    *,
    shapes: Sequence[tuple[int, ...]] = SMALL,
    seed: int = 3,
    restore: str = "",
    coordinator: str = COORDINATOR,
    acks: Literal["applied", "durable"] = "applied",
    distribution: Distribution = "normal",
    copies: int = 1,
) -> ParameterLayout:
    """Writes a job's keys, as a coordinator does, for buckets placed over these servers."""
    record = LayoutRecord(make_tensors(shapes, distribution), len(servers))
    layout = record.layout()
    described = JobRecord("running", layout.hash, rule, seed, coordinator, restore, acks, copies, 1)
    puts = {job_key(job): encode(described), layout_key(job): encode(record)}
    for bucket, members in place_copies(layout, job, list(servers), copies).items():
        puts[bucket_key(job, bucket)] = encode(BucketRecord(1, members[0], members if copies > 1 else ()))
    reply = await cluster.client.compare_and_set(ConfigChanges({}, puts))
    assert not reply.conflicts
    return layout


async def start_servers(cluster: ClusterInMemory, *names: str, threads: int = 2, **options: Any) -> list[RoleContext]:
    options = {"apply_threads": str(threads), **options}
    return [await cluster.start("ps", name, server.run, options) for name in names]


async def checkpoint(cluster: ClusterInMemory, job: str, folder: Path, **options: Any) -> tuple[CheckpointFile, ...]:
    """Has a job's servers write a checkpoint, as its coordinator does."""
    client = await make_client(cluster, job, f"c-{len(cluster.contexts)}", role="coordinator", says=COORDINATOR)
    try:
        return await client.checkpoint(str(folder), **options)
    finally:
        await client.close()


async def make_client(
    cluster: ClusterInMemory, job: str, node: str, *, role: str = "worker", says: str = "", **options: object
) -> ParameterClient:
    """A client with an incarnation of its own, attached. `says`: what it calls itself, if not `node`."""
    context = await cluster.context(role, node)
    context.node = says or node
    context.incarnation = 1000 + len(cluster.contexts)
    client = ParameterClient.from_context(context, job, **options)
    await client.attach(deadline_s=120)
    return client


async def pulled(client: ParameterClient) -> list[np.ndarray]:
    """All tensors as they are now."""
    flat = np.zeros(client.layout.flat_size, np.float32)
    await client.pull(flat, deadline_s=120)
    return views(client.layout, flat)


def views(layout: ParameterLayout, flat: np.ndarray) -> list[np.ndarray]:
    return [flat[t.offset : t.offset + t.size].reshape(t.shape) for t in layout.tensors]


def push_of(layout: ParameterLayout, flat: np.ndarray, lr: float = 1.0, kind: str = "gradient") -> PushSet:
    push = PushSet(layout, lr)
    for index, values in enumerate(views(layout, flat)):
        getattr(push, kind)(index, values)
    return push


def random_flat(layout: ParameterLayout, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(layout.flat_size).astype(np.float32)


def constant(layout: ParameterLayout, value: float) -> np.ndarray:
    return np.full(layout.flat_size, value, np.float32)


async def read_while(
    write: Coroutine[Any, Any, None],
    readers: Sequence[ParameterClient],
    *,
    pushes_before: int = 1,
    new_array: Callable[[ParameterClient], np.ndarray] = lambda client: constant(client.layout, 0.0),
) -> set[float]:
    """Clients pull for as long as `write` adds ones to all values: each shard has one value, its version's, or is torn.

    Args:
        write: pushes, and ends.
        readers: who pulls, each into an array of its own.
        pushes_before: pushes that each shard had taken when its values were zero.
        new_array: makes such an array.

    Returns:
        The values that were seen.
    """
    writing = asyncio.ensure_future(write)

    async def read(client: ParameterClient) -> set[float]:
        seen: set[float] = set()
        into = new_array(client)
        while not writing.done():
            found = await client.pull(into)
            for shard in client.layout.shards:
                values = into[shard.offset : shard.offset + shard.size]
                expected = found.pushes[shard.index] - pushes_before
                assert values.min() == values.max() == expected, f"shard {shard.index} is torn"
                seen.add(float(values[0]))
        return seen

    _, *seen = await asyncio.gather(writing, *(read(client) for client in readers))
    return set().union(*seen)


async def sums_on_a_bad_network(seed: int, **options: object) -> None:
    """Three clients push whole numbers under 30% loss, 50% duplicates and reordering: the sum is the checksum (I5)."""
    async with memory_cluster(seed) as cluster:
        for name in TWO:
            await cluster.start("ps", name, server.run, {"apply_threads": "0"})
        layout = await add_job(cluster, "a", TWO, RuleConfig("add"))
        clients = [await make_client(cluster, "a", f"w{n}", attempt_s=0.2, **options) for n in range(3)]

        def set_faults(faults: LinkFaults) -> None:
            for name in TWO:
                for n in range(3):
                    cluster.network.set_faults(faults, f"w{n}", name)
                    cluster.network.set_faults(faults, name, f"w{n}")

        async def work(n: int, client: ParameterClient) -> None:
            pending = []
            for number in range(1, 13):
                flat = constant(layout, float(4**n))
                pending.append(client.start_push(push_of(layout, flat, kind="delta")))
                if number % 4 == 0:
                    await client.pull(np.zeros(layout.flat_size, np.float32), deadline_s=600)
            for push in pending:
                assert not (await push.wait(600)).refused

        before, after = constant(layout, 0.0), constant(layout, 0.0)
        await clients[0].pull(before, exact=True)
        set_faults(LinkFaults(loss=0.3, duplication=0.5, reordering=0.2))
        await asyncio.gather(*(work(n, client) for n, client in enumerate(clients)))
        set_faults(LinkFaults())
        await clients[0].pull(after, exact=True)
        for found, start in zip(views(layout, after), views(layout, before), strict=True):
            np.testing.assert_allclose(found - start, 12 * (1 + 4 + 16), atol=1e-3)
        for client in clients:
            await client.close()

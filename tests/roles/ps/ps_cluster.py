"""Jobs and clients for tests of parameter servers, on the in-memory cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, encode, job_key, layout_key
from adamctl.model.layout import Distribution, ParameterLayout, Tensor, cut_layout, place_buckets
from adamctl.model.rule import RuleConfig
from adamctl.roles.context import RoleContext
from adamctl.roles.ps import server
from adamctl.roles.ps.client import ParameterClient
from adamctl.wire.messages import ConfigChanges
from tests.cluster import ClusterInMemory

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


async def add_job(
    cluster: ClusterInMemory,
    job: str,
    servers: Sequence[str],
    rule: RuleConfig,
    *,
    shapes: Sequence[tuple[int, ...]] = SMALL,
    seed: int = 3,
    restore: str = "",
    acks: Literal["applied", "durable"] = "applied",
    distribution: Distribution = "normal",
) -> ParameterLayout:
    """Writes a job's keys, as a coordinator does, for buckets placed over these servers."""
    record = LayoutRecord(make_tensors(shapes, distribution), len(servers))
    layout = record.layout()
    placement = place_buckets(layout, job, list(servers))
    puts = {job_key(job): encode(JobRecord("running", layout.hash, rule, seed, "", restore, acks))}
    puts[layout_key(job)] = encode(record)
    puts |= {bucket_key(job, bucket): encode(BucketRecord(1, server)) for bucket, server in placement.items()}
    reply = await cluster.client.compare_and_set(ConfigChanges({}, puts))
    assert not reply.conflicts
    return layout


async def start_servers(cluster: ClusterInMemory, *names: str, threads: int = 2, **options: Any) -> list[RoleContext]:
    options = {"apply_threads": str(threads), **options}
    return [await cluster.start("ps", name, server.run, options) for name in names]


async def make_client(cluster: ClusterInMemory, job: str, node: str, **options: object) -> ParameterClient:
    """A client with an incarnation of its own, attached."""
    context = await cluster.context("worker", node)
    context.incarnation = 1000 + len(cluster.contexts)
    client = ParameterClient.from_context(context, job, **options)
    await client.attach(deadline_s=20)
    return client


async def pulled(client: ParameterClient) -> list[np.ndarray]:
    """All tensors as they are now."""
    flat = np.zeros(client.layout.flat_size, np.float32)
    await client.pull(flat, deadline_s=20)
    return views(client.layout, flat)


def views(layout: ParameterLayout, flat: np.ndarray) -> list[np.ndarray]:
    return [flat[t.offset : t.offset + t.size].reshape(t.shape) for t in layout.tensors]

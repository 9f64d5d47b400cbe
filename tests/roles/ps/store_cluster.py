"""A parameter server with a store on a cluster in memory, for tests that end and start it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.records import JobRecord, decode, encode, job_key
from adamctl.model.layout import ParameterLayout
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.ps.store.flusher import StoreWriter
from adamctl.wire.messages import ConfigChanges
from tests.cluster import ClusterInMemory
from tests.roles.ps.ps_cluster import constant, make_client, push_of, start_servers


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert what


async def crash(cluster: ClusterInMemory, node: str, patch: pytest.MonkeyPatch) -> None:
    """Ends a server without its last words: what is not on disk is lost."""

    with patch.context() as context:
        context.setattr(StoreWriter, "close", StoreWriter.abandon)
        await cluster.kill(node)


async def start(cluster: ClusterInMemory, folder: Path, **options: Any) -> RoleContext:
    (context,) = await start_servers(cluster, "ps-0", store=str(folder), **options)
    return context


async def add(client: ParameterClient, layout: ParameterLayout, value: float = 1.0) -> None:
    await client.push(push_of(layout, constant(layout, value), kind="delta"))


async def zeroed(cluster: ClusterInMemory, job: str, layout: ParameterLayout) -> ParameterClient:
    """A client that has made all values 0, with its first push."""
    client = await make_client(cluster, job, "w", attempt_s=1.0)
    flat = constant(layout, 0.0)
    await client.pull(flat)
    await client.push(push_of(layout, -flat, kind="delta"))
    return client


def value_of(arrays: list[np.ndarray]) -> float:
    (value,) = {float(value) for array in arrays for value in array.ravel()}
    return value


async def end(cluster: ClusterInMemory, job: str) -> None:
    """Ends a job as its coordinator does."""
    _, entries = await cluster.client.read(job_key(job))
    (entry,) = [entry for entry in entries if entry.key == job_key(job)]
    ended = msgspec.structs.replace(decode(entry.value, JobRecord), state="ended")
    await cluster.client.compare_and_set(ConfigChanges({}, {entry.key: encode(ended)}))

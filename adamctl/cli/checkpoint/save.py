"""Asks the coordinator of a running job for a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from adamctl.cli.cluster.access import CONTROLLER_DEADLINE_S, ClusterAccess, running_job
from adamctl.config.records import JobRecord
from adamctl.errors import ConfigurationError, RemoteError, UnreachableError
from adamctl.wire.constants import ErrorCode


async def save_now(addresses: Sequence[str], token: str, job: str | None, wait_s: float) -> dict[str, Any]:
    """Returns `job`, `number` and `folder` of a checkpoint that was written for this call.

    Raises:
        ConfigurationError: no such job runs, several run and none was named, or the job has no coordinator.
        UnreachableError: the controller or the coordinator does not answer, or the checkpoint takes over `wait_s`.
        RemoteError: the checkpoint could not be written, or the run is just starting or ending.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    async with ClusterAccess(addresses, token, deadline_s=min(wait_s, CONTROLLER_DEADLINE_S)) as cluster:
        name, record = await running_job(cluster.store, job)
        try:
            async with asyncio.timeout_at(until_s):
                number, folder = await _save(cluster, name, record, wait_s)
        except TimeoutError as error:
            text = f"job {name!r}: no checkpoint within {wait_s:g} s; it may still be written; give a longer --wait"
            raise UnreachableError(text) from error
        return {"job": name, "number": number, "folder": folder}


async def _save(cluster: ClusterAccess, name: str, record: JobRecord, wait_s: float) -> tuple[int, str]:
    client = await cluster.coordinator_of(record)
    if client is None:
        raise ConfigurationError(f"job {name!r} has no coordinator, so nothing writes its checkpoints")
    try:
        return await client.checkpoint(deadline_s=wait_s)
    except RemoteError as error:
        if error.code == ErrorCode.NOT_READY:
            raise UnreachableError(str(error)) from error
        raise
    finally:
        await client.close()

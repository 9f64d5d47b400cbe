"""Asks the coordinator of a running job for a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adamctl.cli.cluster_access import ClusterAccess, running_job
from adamctl.errors import ConfigurationError, RemoteError, UnreachableError
from adamctl.wire.constants import ErrorCode


async def save_now(addresses: Sequence[str], token: str, job: str | None, wait_s: float) -> dict[str, Any]:
    """Returns `job`, `number` and `folder` of a checkpoint that was written for this call.

    Raises:
        ConfigurationError: no such job runs, or several do and none was named, or it has no coordinator.
        UnreachableError: the controller or the coordinator does not answer, or not within `wait_s`.
        RemoteError: it could not be written, or the run is just beginning or ending.
    """
    async with ClusterAccess(addresses, token) as cluster:
        name, record = await running_job(cluster.store, job)
        client = await cluster.coordinator_of(record)
        if client is None:
            raise ConfigurationError(f"job {name!r} has no coordinator, so nobody writes its checkpoints")
        try:
            number, folder = await client.checkpoint(deadline_s=wait_s)
        except RemoteError as error:
            if error.code == ErrorCode.NOT_READY:
                raise UnreachableError(str(error)) from error
            raise
        finally:
            await client.close()
        return {"job": name, "number": number, "folder": folder}

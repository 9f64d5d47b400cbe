"""Asks the coordinator of a running job for a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from adamctl.config.records import JobRecord, NodeRecord, decode, node_key
from adamctl.errors import ConfigurationError, RemoteError, UnreachableError
from adamctl.net.address import prefer
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import ConfigurationStore, cluster_client, read_record
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.wire.constants import ErrorCode

CONTROLLER_DEADLINE_S = 5.0


async def save_now(addresses: Sequence[str], token: str, job: str | None, wait_s: float) -> dict[str, Any]:
    """Returns `job`, `number` and `folder` of a checkpoint that was written for this call.

    Raises:
        ConfigurationError: no such job runs, or several do and none was named, or it has no coordinator.
        UnreachableError: the controller or the coordinator does not answer, or not within `wait_s`.
        RemoteError: it could not be written, or the run is just beginning or ending.
    """
    hello = make_hello("front", f"front-{os.getpid()}", 0, token)
    transport = StreamTransport()
    controller = cluster_client(transport, addresses, lambda: hello, deadline_s=CONTROLLER_DEADLINE_S)
    try:
        name, record = await running_job(controller, job)
        found = await read_record(controller, node_key(record.coordinator), NodeRecord) if record.coordinator else None
        if found is None or found[0].role != "coordinator":
            raise ConfigurationError(f"job {name!r} has no coordinator, so nobody writes its checkpoints")
        where = (prefer(found[0].addresses, found[0].host),)
        client = await CoordinatorClient.connect(transport, where, hello)
        try:
            number, folder = await client.checkpoint(deadline_s=wait_s)
        except RemoteError as error:
            if error.code == ErrorCode.NOT_READY:
                raise UnreachableError(str(error)) from error
            raise
        finally:
            await client.close()
        return {"job": name, "number": number, "folder": folder}
    finally:
        await controller.close()


async def running_job(store: ConfigurationStore, job: str | None) -> tuple[str, JobRecord]:
    """Returns the job of this name, or the only one that runs. Raises ConfigurationError if that is not one."""
    _, entries = await store.read("/jobs/")
    records = {e.key.rpartition("/")[2]: decode(e.value, JobRecord) for e in entries if e.key.count("/") == 2}
    running = {name: record for name, record in records.items() if record.state == "running"}
    known = f"running: {', '.join(sorted(running)) or 'none'}"
    if job is None:
        if len(running) != 1:
            raise ConfigurationError(f"JOB: expected the name of one, since not exactly one runs ({known})")
        return next(iter(running.items()))
    if job not in running:
        raise ConfigurationError(f"JOB: expected one that runs; found {job!r} ({known})")
    return job, running[job]

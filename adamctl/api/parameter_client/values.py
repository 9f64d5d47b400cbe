"""How the arrays of a shared job get their initial values: once, from the client that created it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from adamctl.api.parameter_client.buffers import RegisteredArrays
from adamctl.api.parameter_client.job import FoundJob
from adamctl.config.records import NodeRecord, node_key
from adamctl.errors import DeadlineError, RemoteError
from adamctl.roles.configuration import ConfigurationStore, read_record
from adamctl.roles.coordinator.job import end_job
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.wire.constants import ErrorCode

LOOK_EVERY_S = 0.02
LOOK_LONGEST_S = 0.5


async def give_values(
    servers: ParameterClient, arrays: RegisteredArrays, given: Mapping[str, NDArray[Any]], deadline_s: float
) -> None:
    """Adds the initial values to the zeros that the servers start with, as the very first push.

    No other client pushes before every shard has had a push, so this happens once and comes first.

    Raises:
        DeadlineError: not all servers answered in time.
        RemoteError: a server refused its part.
    """
    push = PushSet(servers.layout, 0.0)
    for name, array in given.items():
        view = arrays.view(name)
        view[...] = array
        push.delta(arrays.numbers[name], view)
    outcome = await servers.push(push, deadline_s=deadline_s, exact=True)
    if outcome.refused:
        raise RemoteError(outcome.refused[0].code, f"initial values were refused: {outcome.refused[0].message}")


async def wait_for_values(
    store: ConfigurationStore,
    servers: ParameterClient,
    arrays: RegisteredArrays,
    job: FoundJob,
    node: str,
    deadline_s: float,
) -> None:
    """Returns when every shard has had its first push; at once for a job whose values the servers drew themselves.

    If the client that should give them is gone, the job can never start, and is ended. Likewise if it is this one,
    `node`, whose call that made the job has failed: what it gave then may still come, so it is not given again.

    Raises:
        DeadlineError: the values did not come in time.
        RemoteError: RUN_ENDED: they will never come.
    """
    layout = servers.layout
    lacking = [s.index for s in layout.shards if layout.tensors[s.tensor].distribution == "given"]
    loop = asyncio.get_running_loop()
    until_s, pause_s, maker_gone = loop.time() + deadline_s, LOOK_EVERY_S, False
    while lacking:
        pulled = await servers.pull(
            arrays.flat, shards=lacking, deadline_s=max(until_s - loop.time(), 0.001), exact=True
        )
        lacking = [shard for shard in lacking if not pulled.pushes[shard]]
        if not lacking:
            return
        maker = job.record.coordinator
        if maker_gone or maker == node:  # it was gone before we checked
            await end_job(store, job.name)
            raise RemoteError(ErrorCode.RUN_ENDED, f"job {job.name!r} never got its initial values")
        maker_gone = await read_record(store, node_key(maker), NodeRecord) is None
        if loop.time() >= until_s:
            raise DeadlineError(f"job {job.name!r}: client {maker} has not given its initial values yet")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_LONGEST_S)

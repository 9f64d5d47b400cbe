"""Has the members of the only replica write its checkpoints, where a job has no parameter servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from adamctl.errors import RemoteError
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.client.checkpoint import files_of, not_once
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointReply, CheckpointRequest

CONNECT_S = 5.0


class MemberCheckpoints:
    """Orders checkpoints like a `ParameterClient`."""

    def __init__(self, context: RoleContext, shards: int, job: Callable[[], str], members: Callable[[], Sequence[str]]):
        """Args:
        shards: of the layout.
        job: returns the job's name.
        members: returns the nodes that hold the parameters now.
        """
        self._context, self._shards, self._job, self._members = context, shards, job, members

    async def checkpoint(self, folder: str, *, deadline_s: float = 600.0) -> tuple[CheckpointFile, ...]:
        """Makes every member write its shards to `folder` under temporary names; returns all files, sorted by name.

        Raises:
            UnreachableError, RemoteError: a member failed to, or there are not all of them.
        """
        parts = await asyncio.gather(*(self._one(node, folder, deadline_s) for node in self._members()))
        files = tuple(sorted((file for part in parts for file in part), key=lambda file: file.name))
        missing = not_once(files, self._shards)
        if missing:
            raise RemoteError(ErrorCode.NOT_READY, f"{missing} shards were not written: the replica is not complete")
        return files

    async def _one(self, node: str, folder: str, deadline_s: float) -> tuple[CheckpointFile, ...]:
        connection = await self._context.connect(node, deadline_s=CONNECT_S)
        try:
            reply = await connection.request(CheckpointRequest(self._job(), folder), deadline_s=deadline_s)
        except RemoteError as error:
            raise RemoteError(error.code, f"worker {node}: {error}", error.details) from error
        finally:
            await connection.close()
        assert isinstance(reply.message, CheckpointReply)
        return files_of(f"worker {node}", node, reply.message.files, self._shards)

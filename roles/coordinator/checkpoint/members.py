"""Has the members of the only replica write its checkpoints, where a job has no parameter servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from adamctl.errors import RemoteError
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.client.checkpoint import files_of, not_once
from adamctl.roles.ps.client.incoming_file import STREAMS_MAX, fetch
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

    async def checkpoint(
        self, folder: str, *, deadline_s: float = 600.0, nonce: str = ""
    ) -> tuple[CheckpointFile, ...]:
        """Makes every member write its shards to `folder` under temporary names; returns all files, sorted by name.

        `nonce`: what `folder` has in the file `.nonce`: the files of members that cannot read it are fetched.

        Raises:
            UnreachableError, RemoteError: a member failed to, or there are not all of them.
            DamagedDataError, OSError: what was fetched is damaged, or could not be written.
        """
        receiving = asyncio.Semaphore(STREAMS_MAX)
        parts = await asyncio.gather(
            *(self._one(node, folder, deadline_s, nonce, receiving) for node in self._members())
        )
        files = tuple(sorted((file for part in parts for file in part), key=lambda file: file.name))
        missing = not_once(files, self._shards)
        if missing:
            raise RemoteError(ErrorCode.NOT_READY, f"{missing} shards were not written: the replica is not complete")
        return files

    async def _one(
        self, node: str, folder: str, deadline_s: float, nonce: str, receiving: asyncio.Semaphore
    ) -> tuple[CheckpointFile, ...]:
        job, until_s = self._job(), asyncio.get_running_loop().time() + deadline_s
        connection = await self._context.connect(node, deadline_s=CONNECT_S)
        try:
            reply = await connection.request(CheckpointRequest(job, folder, nonce=nonce), deadline_s=deadline_s)
            assert isinstance(reply.message, CheckpointReply)
            files = reply.message.files
            if nonce and reply.message.stream:
                async with receiving:
                    files = await fetch(connection, job, reply.message.stream, node, Path(folder), until_s)
        except RemoteError as error:
            raise RemoteError(error.code, f"worker {node}: {error}", error.details) from error
        finally:
            await connection.close()
        return files_of(f"worker {node}", node, files, self._shards)

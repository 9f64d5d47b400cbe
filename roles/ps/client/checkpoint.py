"""Makes every server of a job write its shards, and tries again if buckets move to another server meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.ps.checkpoint_files import file_name, partial_name
from adamctl.roles.ps.client.delivery import REQUEST_LATER
from adamctl.roles.ps.client.incoming_file import STREAMS_MAX, fetch
from adamctl.roles.ps.client.session import Session, gather_all
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointReply, CheckpointRequest

_CHECKSUM = re.compile(r"[0-9a-f]{32}")


async def order_checkpoint(
    session: Session, folder: str, deadline_s: float, commit: int = -1, nonce: str = ""
) -> tuple[CheckpointFile, ...]:
    """Makes all servers write; returns all files, sorted by name. Together they hold every shard exactly once.

    `commit`: see `CheckpointRequest`. `nonce`: what `folder`, which must then be here, has in the file `.nonce`: the
    files of servers that cannot read it there are fetched, two at a time. If buckets have copies, it starts over when a
    server is lost or a bucket has moved, until `deadline_s` has passed.

    Raises:
        DeadlineError, UnreachableError, RemoteError: a server failed to; the message names it.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    order = _Order(folder, commit, nonce, until_s, asyncio.Semaphore(STREAMS_MAX))
    attempt = 0
    while True:
        problem: UnreachableError | RemoteError
        try:
            parts = await gather_all(_one(session, node, order) for node in session.routing.servers)
            files = tuple(sorted((file for part in parts for file in part), key=lambda file: file.name))
            moved = not_once(files, len(session.layout.shards))
            if not moved:
                return files
            problem = RemoteError(ErrorCode.NOT_READY, f"{moved} shards moved while the checkpoint was written")
        except UnreachableError as error:
            problem = error
        except RemoteError as error:
            if error.code not in (*REQUEST_LATER, ErrorCode.UNKNOWN_JOB):
                raise
            problem = error
        if not session.copies or loop.time() >= until_s:
            raise problem
        await session.look()
        await session.pause(attempt)
        attempt += 1


@dataclass(frozen=True)
class _Order:
    """What servers are asked for; see `order_checkpoint`. `receiving` bounds how many files are fetched at once."""

    folder: str
    commit: int
    nonce: str
    until_s: float
    receiving: asyncio.Semaphore

    @property
    def left_s(self) -> float:
        return max(self.until_s - asyncio.get_running_loop().time(), 0.001)


async def _one(session: Session, node: str, order: _Order) -> tuple[CheckpointFile, ...]:
    async def ask() -> tuple[CheckpointFile, ...]:
        connection = await session.reach(node, "administration")
        message = CheckpointRequest(session.job, order.folder, order.commit, order.nonce)
        try:
            reply = await connection.request(message, deadline_s=order.left_s)
            assert isinstance(reply.message, CheckpointReply)
            files = reply.message.files
            if order.nonce and reply.message.stream:
                async with order.receiving:
                    place = Path(order.folder)
                    files = await fetch(connection, session.job, reply.message.stream, node, place, order.until_s)
        except RemoteError as error:
            raise RemoteError(error.code, f"parameter server {node}: {error}", error.details) from error
        finally:
            await connection.close()
        return files_of(f"parameter server {node}", node, files, len(session.layout.shards))

    if not session.copies:
        return await ask()
    return await session.rerouting.answer(ask(), lambda: node not in session.routing.servers)


def files_of(who: str, node: str, files: tuple[CheckpointFile, ...], shards: int) -> tuple[CheckpointFile, ...]:
    """Checks a node's description of its file and returns it with the file names derived from the node's name.

    `who`: what to call the node in messages.

    Raises:
        RemoteError: BAD_MESSAGE, the description is invalid.
    """
    if not files:
        return ()
    file = files[0]
    known = all(0 <= shard < shards for shard in file.shards)
    if len(files) > 1 or not known or file.size_bytes < 0 or _CHECKSUM.fullmatch(file.checksum) is None:
        text = f"{who}: expected one file with its length, checksum and shards below {shards}"
        raise RemoteError(ErrorCode.BAD_MESSAGE, f"{text}; found {str(files)[:200]!a}")
    name = file_name(node)
    return (msgspec.structs.replace(file, name=name, temporary_name=partial_name(name)),)


def not_once(files: Iterable[CheckpointFile], shards: int) -> int:
    """Returns how many shards are in no file or in more than one."""
    found = Counter(shard for file in files for shard in file.shards)
    return sum(found[shard] != 1 for shard in range(shards))

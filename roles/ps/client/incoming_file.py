"""Fetches a server's file of a checkpoint in parts and writes it, for a server that cannot write into the folder."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

from adamctl.errors import DamagedDataError, RemoteError
from adamctl.net.transport import Connection
from adamctl.roles.durable_file import to_its_end
from adamctl.roles.ps.checkpoint_encoder import create_partial
from adamctl.roles.ps.checkpoint_files import file_name, partial_name
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointPartReply, CheckpointPartRequest

STREAMS_MAX: Final = 2
"""Files received at once: each has at most one part in memory."""


class IncomingFile:
    """Writes one file under the temporary name that follows from its node; blocking, so use it in threads.

    One call at a time: first `open`; at last `finish` and `close`, or else `abandon`, also after an error.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self._path, self._node, self._name = folder, node, file_name(node)
        self._folder = -1
        self._file: BinaryIO | None = None
        self._hash = blake2b(digest_size=16)
        self.size_bytes = 0

    def open(self) -> None:
        """Begins the file, in place of an older one. Raises OSError."""
        self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._file = create_partial(self._folder, self._name)

    def add(self, part: memoryview, checksum: int) -> None:
        """Appends a part. Raises DamagedDataError if it was damaged on its way, OSError if the disk refuses it."""
        if crc32(part) != checksum:
            raise DamagedDataError(f"{self._node}: the part of its file from byte {self.size_bytes} has come damaged")
        assert self._file is not None
        self._file.write(part)
        self._hash.update(part)
        self.size_bytes += len(part)

    def finish(self, file: CheckpointFile) -> None:
        """Syncs the file to disk. Raises DamagedDataError if it is not the one described, OSError."""
        found = (self.size_bytes, self._hash.hexdigest())
        if found != (file.size_bytes, file.checksum):
            expected = f"{file.size_bytes} bytes with checksum {file.checksum}"
            raise DamagedDataError(f"{self._node}: expected its file to be {expected}; found {found[0]}, {found[1]}")
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Keeps the finished file."""
        file, folder, self._file, self._folder = self._file, self._folder, None, -1
        try:
            if file is not None:
                file.close()
        finally:
            if folder >= 0:
                os.close(folder)

    def abandon(self) -> None:
        """Removes the unfinished file, if there is one."""
        try:
            if self._file is not None:
                os.unlink(partial_name(self._name), dir_fd=self._folder)
        except FileNotFoundError:
            pass
        finally:
            self.close()


async def fetch(
    connection: Connection, job: str, stream: int, node: str, folder: Path, until_s: float
) -> tuple[CheckpointFile, ...]:
    """Fetches a stream into `folder`; returns the server's description of its file, empty if it holds no shards.

    Args:
        until_s: by the loop's clock, when to give up.

    Raises:
        DamagedDataError: a part, or the whole, is not what was sent.
        OSError: it cannot be written.
        DeadlineError, UnreachableError, RemoteError: the server did not send it. Nothing of it remains.
    """
    loop = asyncio.get_running_loop()
    writer = IncomingFile(folder, node)
    try:
        await to_its_end(writer.open)
        while True:
            message = CheckpointPartRequest(job, stream, writer.size_bytes)
            reply = await connection.request(message, deadline_s=max(until_s - loop.time(), 0.001))
            try:
                part = reply.message
                assert isinstance(part, CheckpointPartReply)
                await to_its_end(partial(writer.add, reply.body, part.checksum))
            finally:
                if len(reply.body):
                    reply.release()
            if part.last:
                break
        if len(part.files) > 1 or bool(part.files) != bool(writer.size_bytes):
            raise RemoteError(ErrorCode.BAD_MESSAGE, f"{node}: expected the description of one file with its parts")
        if part.files:
            await to_its_end(partial(writer.finish, part.files[0]))
            writer.close()
        else:
            await to_its_end(writer.abandon)
        return part.files
    except BaseException:
        await to_its_end(writer.abandon)
        raise

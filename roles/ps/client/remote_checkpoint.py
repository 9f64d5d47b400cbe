"""Reads the checkpoint that a job begins from: in its folder, or from the coordinator where the folder is not here."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

from adamctl.config.records import JobRecord
from adamctl.errors import DamagedDataError, DeadlineError, RemoteError, UnreachableError
from adamctl.net.transport import Connection
from adamctl.roles.manifest_bytes import content_checksum
from adamctl.roles.ps.checkpoint_files import MANIFEST_NAME, CheckpointPlace
from adamctl.roles.rooted import Roots
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import CHECKPOINT_PART_BYTES_MAX
from adamctl.wire.messages import CheckpointReadReply, CheckpointReadRequest

Start: TypeAlias = str | CheckpointPlace
"""What a job begins from: a checkpoint's folder, one that is elsewhere, or "" for the values of the seed."""
BUFFER_BYTES: Final = 256 << 10
"""Read ahead, since a file's index is spread over it; an array is asked for as a whole."""
DEADLINE_S: Final = 30.0
ATTEMPTS: Final = 3
PAUSE_S: Final = 0.5


class Connects(Protocol):
    """A role's context."""

    async def connect(self, node: str, deadline_s: float) -> Connection: ...


async def checkpoint_place(
    context: Connects, job: str, record: JobRecord, roots: Roots
) -> tuple[Start, RemoteCheckpoint | None]:
    """Returns where the checkpoint that a job begins from is read, "" if none; the second value is to be closed then.

    Raises:
        RemoteError: NOT_ALLOWED, its folder is in none of the roots, and nobody else has it.
    """
    if record.restore and record.restore_checksum and record.coordinator:
        if await asyncio.to_thread(_is_here, roots, record):
            return record.restore, None
        remote = RemoteCheckpoint(context, job, record.coordinator)
        return CheckpointPlace(Path(record.restore), remote.open), remote
    await asyncio.to_thread(roots.check, record.restore)
    return record.restore, None


def _is_here(roots: Roots, record: JobRecord) -> bool:
    """Returns whether the folder is here and holds the coordinator's checkpoint, not another one."""
    try:
        roots.check(record.restore)
        return content_checksum((Path(record.restore) / MANIFEST_NAME).read_bytes()) == record.restore_checksum
    except (OSError, RemoteError):
        return False


class RemoteCheckpoint:
    """The coordinator's files, read in pieces over one connection. Make and close it on the event loop."""

    def __init__(self, context: Connects, job: str, coordinator: str) -> None:
        self._context, self._job, self._coordinator = context, job, coordinator
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    def open(self, name: str) -> BinaryIO:
        """Opens a file. Call it, and what it returns, in a thread other than the loop's.

        Raises:
            DamagedDataError: what comes is not what was sent.
            UnreachableError, RemoteError: the coordinator does not give it.
        """
        return io.BufferedReader(_RemoteFile(self, name), BUFFER_BYTES)

    def read(self, name: str, offset: int, size: int) -> tuple[bytes, int]:
        """Returns at most `size` bytes of a file, and its length; blocks. Raises like `open`."""
        message = CheckpointReadRequest(self._job, name, offset, min(size, CHECKPOINT_PART_BYTES_MAX))
        reading: Future[tuple[bytes, int]] = asyncio.run_coroutine_threadsafe(self._read(message), self._loop)
        return reading.result()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _read(self, message: CheckpointReadRequest) -> tuple[bytes, int]:
        async with self._turn:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return await self._ask(message)
                except (UnreachableError, DeadlineError):
                    await self.close()
                    self._connection = None
                    if attempt == ATTEMPTS:
                        raise
                    await asyncio.sleep(PAUSE_S)
        raise AssertionError

    async def _ask(self, message: CheckpointReadRequest) -> tuple[bytes, int]:
        if self._connection is None:
            self._connection = await self._context.connect(self._coordinator, DEADLINE_S)
        reply = await self._connection.request(message, deadline_s=DEADLINE_S)
        assert isinstance(reply.message, CheckpointReadReply)
        piece = bytes(reply.body)
        reply.release()
        if crc32(piece) != reply.message.checksum or len(piece) > message.size:
            raise DamagedDataError(f"{message.name} of {self._coordinator}: bytes from {message.offset} came damaged")
        return piece, reply.message.file_bytes


class _RemoteFile(io.RawIOBase):
    """A file that is read and positioned, nothing else."""

    def __init__(self, checkpoint: RemoteCheckpoint, name: str) -> None:
        super().__init__()
        self._checkpoint, self._file_name, self._position = checkpoint, name, 0
        _, self._size_bytes = checkpoint.read(name, 0, 0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        left = max(self._size_bytes - self._position, 0)
        if not left or not len(into):
            return 0
        piece, _ = self._checkpoint.read(self._file_name, self._position, min(len(into), left))
        into[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

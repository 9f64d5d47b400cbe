"""Gives servers the checkpoint that a run begins from, where they cannot read its folder themselves."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from adamctl.errors import RemoteError
from adamctl.net.transport import Request
from adamctl.roles.coordinator.checkpoint.manifest import MANIFEST_NAME, read_manifest
from adamctl.roles.manifest_bytes import content_checksum
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import CHECKPOINT_PART_BYTES_MAX, ErrorCode
from adamctl.wire.messages import CheckpointReadReply, CheckpointReadRequest

READS_MAX: Final = 4
"""Pieces in memory at once; the requests of other servers wait."""


class ServedCheckpoint:
    """A finished checkpoint; nothing but the files that its manifest lists can be read.

    Attributes:
        checksum: by which servers know it.
    """

    def __init__(self, folder: Path) -> None:
        """Blocks. Raises DamagedDataError: its manifest cannot be read."""
        self._folder = folder
        self._names = {MANIFEST_NAME, *(file.name for file in read_manifest(folder).files)}
        self.checksum = content_checksum((folder / MANIFEST_NAME).read_bytes())
        self._reading = asyncio.Semaphore(READS_MAX)

    async def answer(self, request: Request, message: CheckpointReadRequest) -> None:
        """Answers a request for a piece, whatever happens."""
        try:
            if message.name not in self._names:
                raise RemoteError(ErrorCode.NOT_ALLOWED, f"{message.name[:200]!a} is no file of the run's checkpoint")
            if not (0 <= message.size <= CHECKPOINT_PART_BYTES_MAX and message.offset >= 0):
                found = f"{message.size} bytes from {message.offset}"
                raise RemoteError(ErrorCode.BAD_MESSAGE, f"expected at most {CHECKPOINT_PART_BYTES_MAX}; found {found}")
            async with self._reading:
                piece, file_bytes = await asyncio.to_thread(self._read, message)
                checksum = await asyncio.to_thread(crc32, piece)
                request.reply(CheckpointReadReply(file_bytes, checksum), [piece] if piece else ())
        except RemoteError as error:
            request.fail(error.code, str(error))
        except OSError as error:
            request.fail(ErrorCode.INTERNAL, f"the coordinator cannot read {message.name}: {error.strerror}")
        except asyncio.CancelledError:
            request.fail(ErrorCode.SHUTTING_DOWN, "the coordinator is closing")
            raise

    def _read(self, message: CheckpointReadRequest) -> tuple[bytes, int]:
        with open(self._folder / message.name, "rb") as file:
            return os.pread(file.fileno(), message.size, message.offset), os.fstat(file.fileno()).st_size

"""Encodes a server's file of a checkpoint, shard by shard: into a folder, or for whoever takes the bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from adamctl.roles.ps.checkpoint_files import (
    CHECKSUM,
    END_MAGIC,
    FILE_HEADER,
    FILE_MAGIC,
    FILE_VERSION,
    RECORD_HEADER,
    RECORD_MAGIC,
    FileDescriptor,
    ShardImage,
    partial_name,
)
from adamctl.wire.checksum import crc32
from adamctl.wire.messages import CheckpointFile


class ShardEncoder:
    """Encodes one file, shard after shard; `write` takes the bytes."""

    def __init__(self, name: str, descriptor: FileDescriptor, write: Callable[[bytes | memoryview], object]) -> None:
        self.name, self.temporary_name, self._write = name, partial_name(name), write
        self._hash = blake2b(digest_size=16)
        self._size_bytes = 0
        self._shards: list[int] = []
        encoded = msgspec.msgpack.encode(descriptor)
        self._write_checked(FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, len(encoded)), encoded)

    def add(self, image: ShardImage) -> None:
        """Appends one shard. Raises what `write` does."""
        arrays = [np.ascontiguousarray(array, "<f4") for array in (image.values, *image.state)]
        description = msgspec.msgpack.encode(image.record)
        header = RECORD_HEADER.pack(RECORD_MAGIC, len(description), sum(array.nbytes for array in arrays))
        self._write_checked(header, description)
        self._write_checked(*(array.data.cast("B") for array in arrays))
        self._shards.append(image.record.shard)

    def end(self) -> CheckpointFile:
        """Appends the end mark and returns what the file is like."""
        self._write_checked(RECORD_HEADER.pack(END_MAGIC, 0, len(self._shards)))
        return CheckpointFile(
            self.name, self.temporary_name, self._size_bytes, self._hash.hexdigest(), tuple(self._shards)
        )

    def _write_checked(self, *pieces: bytes | memoryview) -> None:
        checksum = 0
        for piece in pieces:
            checksum = crc32(piece, checksum)
        for written in (*pieces, CHECKSUM.pack(checksum)):
            self._write(written)
            self._hash.update(written)
            self._size_bytes += len(written)


class CheckpointWriter(ShardEncoder):
    """Writes one file under a temporary name; blocking, so use it in a thread."""

    def __init__(self, folder: Path | int, name: str, descriptor: FileDescriptor) -> None:
        """`folder`: its path, or an open descriptor, which the caller closes.

        Replaces any file of the same temporary name. Raises OSError if the folder cannot be written to.
        """
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            self._folder = os.dup(folder)
        try:
            self._file = create_partial(self._folder, name)
        except BaseException:
            os.close(self._folder)
            raise
        super().__init__(name, descriptor, self._file.write)

    def finish(self) -> CheckpointFile:
        """Writes the end mark and syncs the file to disk. Raises OSError."""
        file = self.end()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.close(self._folder)
        return file

    def abandon(self) -> None:
        """Removes the unfinished file."""
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self.temporary_name, dir_fd=self._folder)
        os.close(self._folder)


def create_partial(folder: int, name: str) -> BinaryIO:
    """Creates a file's temporary form in an open folder, in place of any older one. Raises OSError."""
    temporary_name = partial_name(name)
    with suppress(FileNotFoundError):
        os.unlink(temporary_name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(temporary_name, flags, 0o600, dir_fd=folder), "wb")

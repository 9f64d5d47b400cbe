"""Open tar shards, from which members are read at random by many threads."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from adamctl.errors import ChangedDataError, DamagedDataError
from adamctl.roles.data.readers.tar_headers import BLOCK_BYTES, name_at
from adamctl.roles.data.readers.tar_index import ShardIndex

OPEN_MAX: Final = 256
"""Shards kept open; more are opened for every read, which takes a few microseconds."""


class TarFiles:
    """The shards of a source. Thread-safe: a descriptor is used by all threads, and closed with the last of them."""

    def __init__(self, paths: Sequence[Path], indexes: Sequence[ShardIndex]) -> None:
        self.paths = tuple(paths)
        self._states = [(index.size_bytes, index.modified_ns) for index in indexes]
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}
        weakref.finalize(self, _close, self._descriptors)

    def read(self, shard: int, offset: int, size_bytes: int) -> bytes:
        """Returns a member's content.

        Raises:
            ChangedDataError: the shard has changed since it was opened, or cannot be read.
            DamagedDataError: it ends before.
        """
        descriptor, kept = -1, False
        try:
            descriptor, kept = self._open(shard)
            state = os.fstat(descriptor)
            if (state.st_size, state.st_mtime_ns) != self._states[shard]:
                raise ChangedDataError(
                    f"{self.paths[shard]}: expected {self._states[shard][0]:,} bytes as when it was opened, found "
                    f"{state.st_size:,}, or written to since; do not change data while a run reads them"
                )
            content = os.pread(descriptor, size_bytes, offset)
        except OSError as error:
            raise ChangedDataError(f"{self.paths[shard]}: byte {offset:,}: cannot be read: {error}") from error
        finally:
            if descriptor >= 0 and not kept:
                os.close(descriptor)
        if len(content) != size_bytes:
            raise DamagedDataError(
                f"{self.paths[shard]}: byte {offset:,}: expected {size_bytes:,} bytes, found {len(content):,}"
            )
        return content

    def place(self, shard: int, offset: int) -> Place:
        """Returns what to call the member whose content begins at `offset`."""
        return Place(self, shard, offset)

    def name(self, shard: int, offset: int) -> str:
        """Returns the name in the header before a content; empty if it cannot be read."""
        try:
            descriptor, kept = self._open(shard)
            try:
                return name_at(descriptor, offset)
            finally:
                if not kept:
                    os.close(descriptor)
        except OSError:
            return ""

    def _open(self, shard: int) -> tuple[int, bool]:
        """Returns a descriptor, and whether it is kept."""
        descriptor = self._descriptors.get(shard)
        if descriptor is not None:
            return descriptor, True
        opened = os.open(self.paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        with self._lock:
            if shard in self._descriptors:
                os.close(opened)
                return self._descriptors[shard], True
            if len(self._descriptors) < OPEN_MAX:
                self._descriptors[shard] = opened
                return opened, True
        return opened, False


class Place:
    """Shard, byte and member of an example, as text: its name is read only for that."""

    def __init__(self, files: TarFiles, shard: int, offset: int) -> None:
        self._files, self._shard, self._offset = files, shard, offset

    def __str__(self) -> str:
        name = self._files.name(self._shard, self._offset)
        return f"{self._files.paths[self._shard]}: byte {self._offset - BLOCK_BYTES:,}: {name}"


def _close(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])

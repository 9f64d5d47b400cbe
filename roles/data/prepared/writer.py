"""Writes a prepared set beside its place, and puts it there when it is complete: a half-written one is never read."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.roles.data.prepared.layout import (
    BESIDE,
    FORMAT_VERSION,
    MANIFEST_NAME,
    SHARD_BYTES,
    Kind,
    Manifest,
    PreparedFile,
    block_rows_for,
    encode_manifest,
)
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit
from adamctl.roles.durable_file import sync_folder
from adamctl.wire.checksum import crc32

_PARTIAL: Final = ".{}.partial"


class PreparedWriter:
    """Takes examples in order and writes them into shards. Use it in a `with` statement, and call `finish` in it.

    What an earlier writer left half-written for the same folder is removed. One that is not finished leaves nothing.
    """

    def __init__(
        self,
        folder: Path,
        example_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        value_max: float,
        *,
        targets: int = 0,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """`targets`: how many numbers the target of an example has; 0: examples have labels.

        Raises:
            ConfigurationError: the folder exists already, cannot be written, or is being written by another process.
        """
        self.folder = folder.expanduser().absolute()
        if self.folder.exists():
            raise ConfigurationError(f"{self.folder} exists already; remove it, or give another folder")
        self._shape = example_shape
        self._dtype = dtype.newbyteorder("<")
        self._value_max = value_max
        self._targets = targets
        self._shard_bytes = shard_bytes
        self._partial = self.folder.with_name(_PARTIAL.format(self.folder.name))
        self._lock = self._begin()
        self._files: list[PreparedFile] = []
        self._open: dict[tuple[FileSplit, Kind], _OpenFile] = {}
        self._shards = dict.fromkeys(FILE_SPLITS, 0)

    def _begin(self) -> int:
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._partial, os.O_RDONLY)
        except OSError as error:
            raise ConfigurationError(f"{self.folder} cannot be written: {error}; give another folder") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise ConfigurationError(f"another process prepares {self.folder}; wait for it, or end it") from error
        for left in self._partial.iterdir():
            left.unlink()
        return lock

    def add(
        self,
        split: FileSplit,
        values: NDArray[Any],
        labels: NDArray[Any],
        others: Mapping[Kind, NDArray[Any]] | None = None,
    ) -> None:
        """Appends examples [n, *shape] of the set's type, and their labels int32 [n] or targets float32 [n, k].

        `others` are groups and weights, [n] each.

        Raises OSError: the disk is full, for example.
        """
        rows = np.ascontiguousarray(values, self._dtype).reshape(len(values), -1)
        done = 0
        while done < len(rows):
            shard = self._file(split, "examples", rows.shape[1] * self._dtype.itemsize)
            room = max(self._shard_bytes // shard.row_bytes // shard.block_rows, 1) * shard.block_rows - shard.rows
            part = rows[done : done + room]
            shard.write(part)
            done += len(part)
            if len(part) == room:
                self._close(split, "examples")
        needed: Kind = "targets" if self._targets else "labels"
        for kind, numbers in {needed: labels, **(others or {})}.items():
            if len(numbers):
                beside = np.ascontiguousarray(numbers, BESIDE[kind]).reshape(len(numbers), -1)
                self._file(split, kind, beside.itemsize * beside.shape[1]).write(beside)

    def _file(self, split: FileSplit, kind: Kind, row_bytes: int) -> _OpenFile:
        if (split, kind) not in self._open:
            name = f"{split}.{kind}"
            if kind == "examples":
                name = f"{split}-{self._shards[split]:05}.{kind}"
                self._shards[split] += 1
            self._open[split, kind] = _OpenFile(self._partial / name, kind, row_bytes)
        return self._open[split, kind]

    def _close(self, split: FileSplit, kind: Kind) -> None:
        file = self._open.pop((split, kind))
        self._files.append(file.finished(kind, split))

    def finish(self, classes: tuple[str, ...], made_from: str) -> Manifest:
        """Completes the set and puts it into its place. Returns the list of its files.

        Raises:
            ConfigurationError: meanwhile something else is in its place.
        """
        for split, kind in list(self._open):
            self._close(split, kind)
        files = tuple(sorted(self._files, key=lambda file: (file.split != "train", file.kind, file.name)))
        manifest = Manifest(
            FORMAT_VERSION,
            self._shape,
            "uint8" if self._dtype == np.uint8 else "float32",
            self._value_max,
            classes,
            self._targets,
            made_from,
            files,
        )
        with (self._partial / MANIFEST_NAME).open("wb") as file:
            file.write(encode_manifest(manifest))
            file.flush()
            os.fsync(file.fileno())
        os.fsync(self._lock)
        if self.folder.exists():
            raise ConfigurationError(f"{self.folder} exists already; remove it, or give another folder")
        self._partial.rename(self.folder)
        sync_folder(self.folder.parent)
        return manifest

    def __enter__(self) -> PreparedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.close()
        shutil.rmtree(self._partial, ignore_errors=True)
        os.close(self._lock)


class _OpenFile:
    """A file being written: rows go into blocks, blocks and file into checksums."""

    def __init__(self, path: Path, kind: Kind, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.block_rows = block_rows_for(kind, row_bytes)
        self.rows = 0
        self._path = path
        self._file = path.open("xb")
        self._whole = sha256()
        self._checksums: list[int] = []

    def write(self, rows: NDArray[Any]) -> None:
        """Appends rows, C-contiguous."""
        if not rows.size:
            return
        content = rows.data.cast("B")
        self._file.write(content)
        self._whole.update(content)
        done = 0
        while done < len(rows):
            filled = self.rows % self.block_rows
            count = min(self.block_rows - filled, len(rows) - done)
            part = content[done * self.row_bytes : (done + count) * self.row_bytes]
            if filled:
                self._checksums[-1] = crc32(part, self._checksums[-1])
            else:
                self._checksums.append(crc32(part))
            self.rows += count
            done += count

    def finished(self, kind: Kind, split: FileSplit) -> PreparedFile:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sums = tuple(self._checksums)
        return PreparedFile(
            self._path.name, kind, split, self.rows, self.row_bytes, self.block_rows, sums, self._whole.hexdigest()
        )

    def close(self) -> None:
        self._file.close()

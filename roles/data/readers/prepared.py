"""Sets that `adamctl data prepare` wrote: plain arrays in blocks, each checked when it is first read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.config.urls import Url
from adamctl.errors import ChangedDataError, ConfigurationError, DamagedDataError
from adamctl.roles.data.prepared.layout import (
    BESIDE,
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    Kind,
    Manifest,
    PreparedFile,
    decode_manifest,
)
from adamctl.roles.data.readers.late_file import ReadCounter
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.shards import LocalShard, Shard, shards_at
from adamctl.roles.data.readers.source import (
    FILE_SPLITS,
    FileSplit,
    Groups,
    Labels,
    Peek,
    Targets,
    groups_of,
    matching_shape,
)
from adamctl.roles.data.readers.targets import target_count
from adamctl.wire.checksum import crc32

READER: Final = Reader(
    "prepared",
    (),
    open=f"{__name__}:open_prepared",
    peek=f"{__name__}:peek_prepared",
    reads_config=True,
    reads_urls=True,
    files=f"{__name__}:prepared_files",
)
_WHOLE_BLOCK: Final = 8
"""A block is read as a whole if an eighth of it is wanted: reading one row costs about as much as some tens of KiB."""


class PreparedSource:
    """Examples in blocks of their shards, read as they are. Labels are in memory.

    A block is checked when it is first read, and whenever it is read as a whole.
    """

    format = "prepared"
    resident = False

    def __init__(self, shards: Sequence[Shard], input_shape: Sequence[int] | None, origin: str) -> None:
        """Raises as `open_prepared`."""
        self.origin = origin
        found = {shard.name: shard for shard in shards}
        self._manifest = read_manifest(found, origin)
        manifest = self._manifest
        self.classes = manifest.classes
        self.example_shape = matching_shape(manifest.example_shape, input_shape, self.origin)
        self.dtype = np.dtype(manifest.dtype)
        self.value_max = manifest.value_max
        self.stored_bytes = sum(file.size_bytes for file in manifest.files)
        self._counter = ReadCounter()
        self._shards = {file.name: _shard_of(found, file, origin) for file in manifest.files}
        self._targets: dict[FileSplit, Targets] = {}
        if manifest.targets:
            self._targets = {split: self._all_rows(split, "targets") for split in FILE_SPLITS}
            self._labels = {split: np.zeros(len(rows), np.int32) for split, rows in self._targets.items()}
        else:
            self._labels = {split: self._all_rows(split, "labels") for split in FILE_SPLITS}
        self._groups = {split: self._all_rows(split, "groups") for split in FILE_SPLITS}
        weights = self._all_rows("train", "weights")
        if len(weights):
            self.weights = lambda split: weights
        self._files = {split: manifest.of(split, "examples") for split in FILE_SPLITS}
        self._starts = {split: np.cumsum([0, *(file.rows for file in files)]) for split, files in self._files.items()}
        self._checked = {file.name: np.zeros(len(file.checksums), np.bool_) for file in manifest.files}
        by_split = (self._labels, self._targets, self._groups)
        held = (*(rows for part in by_split for rows in part.values()), weights, *self._checked.values())
        self.resident_bytes = sum(values.nbytes for values in held)

    @property
    def read_bytes(self) -> int:
        """Bytes that were read from files since it was opened."""
        return self._counter.total_bytes

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def targets(self, split: FileSplit) -> Targets | None:
        """Returns a split's targets [examples, k]; None if its examples have classes."""
        return self._targets.get(split)

    def groups(self, split: FileSplit) -> Groups | None:
        """Returns which examples belong together, as `groups_of` says."""
        return self._groups[split] if self._manifest.of("train", "groups") else None

    def blocks(self, split: FileSplit) -> NDArray[np.int64]:
        """Returns how many examples each block has, [B]."""
        return np.array([rows for file in self._files[split] for rows in file.block_lengths()], np.int64)

    def fetched(self, split: FileSplit) -> NDArray[np.int64] | None:
        """Returns how many examples each file has, if files are fetched, [files]."""
        files = self._files[split]
        if not any(self._shards[file.name].fetched for file in files):
            return None
        return np.array([file.rows for file in files], np.int64)

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError with file, block and bytes if a block is not as it was written."""
        rows = out.reshape(len(indices), prod(self.example_shape))
        starts = self._starts[split]
        of_file = np.searchsorted(starts, indices, side="right") - 1
        for number in np.unique(of_file):
            self._shards[self._files[split][number].name].ahead()
        for number in np.unique(of_file):
            places = np.flatnonzero(of_file == number)
            file = self._files[split][number]
            with self._shards[file.name].open() as opened:
                self._load(opened.fileno(), file, indices[places] - starts[number], rows, places)

    def _load(
        self, handle: int, file: PreparedFile, wanted: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Writes rows `wanted` [n] of a file into `out` at `places` [n]."""
        of_block = wanted // file.block_rows
        changes = np.flatnonzero(np.diff(of_block)) + 1
        for part in np.split(np.arange(len(wanted)), changes):
            block = int(of_block[part[0]])
            inside = wanted[part] - block * file.block_rows
            start, stop = file.block_range(block)
            if len(part) * _WHOLE_BLOCK < file.block_rows and self._checked[file.name][block]:
                for row, place in zip(inside, places[part], strict=True):
                    at = start + int(row) * file.row_bytes
                    out[place] = self._rows(handle, file, block, at, at + file.row_bytes)[0]
                continue
            whole = self._in_place(out, inside, places[part], stop - start)
            values = self._rows(handle, file, block, start, stop, whole)
            self._check(file, block, values)
            if whole is None:
                out[places[part]] = values[inside]

    def _in_place(
        self, out: NDArray[Any], inside: NDArray[np.int64], places: NDArray[np.int64], size_bytes: int
    ) -> NDArray[Any] | None:
        """Returns the part of `out` that is to hold a block just as it is in the file, or None."""
        part = out[places[0] : places[0] + len(places)]
        same = part.dtype == self._manifest.values and part.flags.c_contiguous and part.nbytes == size_bytes
        in_order = same and (np.diff(inside) == 1).all() and (np.diff(places) == 1).all()
        return part.reshape(-1) if in_order else None

    def _rows(
        self, handle: int, file: PreparedFile, block: int, start: int, stop: int, into: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Reads bytes [start, stop) of a file as rows."""
        dtype = self._manifest.values if file.kind == "examples" else BESIDE[file.kind]
        values = np.empty((stop - start) // dtype.itemsize, dtype) if into is None else into
        try:
            found = os.preadv(handle, [values.data.cast("B")], start)
        except OSError as error:
            place = f"{self._shards[file.name].origin}: block {block}"
            raise ChangedDataError(f"{place}: cannot be read: {error}; look at the disk") from error
        self._counter.add(found)
        if found != stop - start:
            raise self._damaged(file, block, f"only {found} of {stop - start} bytes")
        return values.reshape((stop - start) // file.row_bytes, -1)

    def _check(self, file: PreparedFile, block: int, values: NDArray[Any]) -> None:
        found = crc32(values.data.cast("B"))
        if found != file.checksums[block]:
            raise self._damaged(file, block, f"checksum {found:08x} instead of {file.checksums[block]:08x}")
        self._checked[file.name][block] = True

    def _damaged(self, file: PreparedFile, block: int, found: str) -> DamagedDataError:
        start, stop = file.block_range(block)
        return DamagedDataError(
            f"{self._shards[file.name].origin}: block {block}, bytes {start} to {stop}: expected what was written, "
            f"found {found}; adamctl data verify {self.origin} finds all damage; prepare the set again"
        )

    def _all_rows(self, split: FileSplit, kind: Kind) -> NDArray[Any]:
        parts: list[NDArray[Any]] = []
        for file in self._manifest.of(split, kind):
            with self._shards[file.name].open() as opened:
                for block, checksum in enumerate(file.checksums):
                    parts.append(self._rows(opened.fileno(), file, block, *file.block_range(block)))
                    if crc32(parts[-1].data.cast("B")) != checksum:
                        raise self._damaged(file, block, "another checksum")
        if kind == "targets":
            return np.concatenate([*parts, np.empty((0, self._manifest.targets), np.float32)], dtype=np.float32)
        dtype = BESIDE[kind].newbyteorder("=")
        return np.concatenate([*(part[:, 0] for part in parts), np.empty(0, dtype)], dtype=dtype)


def read_manifest(shards: Mapping[str, Shard], origin: str) -> Manifest:
    """Reads the list of a set, one of its files by their names.

    Raises:
        ConfigurationError: the files are no prepared set.
        DamagedDataError: the list is damaged.
    """
    if MANIFEST_NAME not in shards:
        raise _no_list(origin)
    shard = shards[MANIFEST_NAME]
    if shard.size_bytes > MANIFEST_BYTES_MAX:
        raise DamagedDataError(f"{shard.origin}: expected at most {MANIFEST_BYTES_MAX} bytes, found {shard.size_bytes}")
    with shard.open() as opened:
        return decode_manifest(opened.read(), shard.origin)


def _no_list(origin: str) -> ConfigurationError:
    return ConfigurationError(
        f"{origin}: expected a folder that `adamctl data prepare` wrote, found no {MANIFEST_NAME} in it"
    )


def _shard_of(shards: dict[str, Shard], file: PreparedFile, origin: str) -> Shard:
    shard = shards.get(file.name)
    if shard is None or shard.size_bytes != file.size_bytes:
        found = f"{shard.size_bytes} bytes" if shard is not None else "none"
        raise DamagedDataError(
            f"{origin}/{file.name}: expected a file of {file.size_bytes} bytes, found {found}; "
            "prepare the set again, or restore the file"
        )
    return shard


def open_prepared(place: Path | Url, input_shape: Sequence[int] | None = None, *, config: DataConfig) -> PreparedSource:
    """Opens a folder that `adamctl data prepare` wrote. Behind a URL, shards are fetched when they are needed.

    Raises:
        ConfigurationError: it is none, or its examples do not fit the model's input.
        DamagedDataError: a file is missing or has another length, or the list of files or the labels are damaged.
    """
    if isinstance(place, Path) and not place.is_dir():
        raise ConfigurationError(f"{place}: expected a folder that `adamctl data prepare` wrote, found a file")
    return PreparedSource(shards_at(place, (), config), input_shape, str(place))


def prepared_files(folder: Path, *, config: DataConfig) -> list[Path]:
    """Returns the list of a set's files, and those that it lists.

    Raises:
        ConfigurationError, DamagedDataError: like `open_prepared`, of the list.
    """
    list_path = folder / MANIFEST_NAME
    if not list_path.is_file():
        raise _no_list(str(folder))
    manifest = read_manifest({MANIFEST_NAME: LocalShard(list_path, MANIFEST_NAME)}, str(folder))
    return [list_path, *(path for file in manifest.files if (path := folder / file.name).is_file())]


def peek_prepared(
    place: Path | Url,
    input_shape: Sequence[int] | None,
    examples_max: int,
    seconds_max: float,
    *,
    config: DataConfig,
) -> Peek:
    """Reads the list of files and all labels, and no examples: damage shows when their blocks are read.

    Raises:
        ConfigurationError, DamagedDataError: like `open_prepared`.
    """
    source = open_prepared(place, input_shape, config=config)
    labels = {split: source.labels(split) for split in FILE_SPLITS}
    found = {split: groups_of(source, split) for split in FILE_SPLITS}
    groups = {split: numbers for split, numbers in found.items() if numbers is not None}
    return Peek(source.classes, labels, groups or None, target_count(source))

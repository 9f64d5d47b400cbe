"""Checkpoint files: each server writes its shards to one file, each shard at one version (docs/formats/checkpoint.md).

A file has a header and one record per shard. Every record has its own checksum, so that damage can be located. A
checkpoint is a folder with such files and the coordinator's `manifest.json`. Records say which rows of which tensor
they hold, so that a job can be restored on any number of servers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from adamctl.errors import DamagedDataError
from adamctl.kernels.operation import Array
from adamctl.model.layout import Tensor
from adamctl.roles.manifest_bytes import decode_manifest
from adamctl.roles.ps.core.exactly_once import MemoryRecord
from adamctl.wire.checksum import crc32
from adamctl.wire.unreadable import UNREADABLE

MANIFEST_NAME: Final = "manifest.json"
FILE_MAGIC: Final = b"ADAMSHRD"
FILE_VERSION: Final = 1
FILE_HEADER: Final = Struct("<8sII")  # magic, version, length of the descriptor
RECORD_MAGIC: Final = b"SHRD"
RECORD_HEADER: Final = Struct("<4sIQ")  # magic, length of the description, length of the arrays
CHECKSUM: Final = Struct("<I")  # CRC-32
END_MAGIC: Final = b"SEND"
DESCRIPTION_BYTES_MAX: Final = 64 << 20

StructT = TypeVar("StructT", bound=msgspec.Struct)


class FileDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """The origin of a file's shards, and how to read their arrays."""

    job: str
    node: str
    layout_hash: str
    rule: str
    state_names: tuple[str, ...]
    tensors: tuple[Tensor, ...]


class ShardRecord(msgspec.Struct, frozen=True, array_like=True):
    """One shard at one version; its float32 arrays follow, all of the same size: values, then the rule's state."""

    shard: int
    tensor: int
    row_start: int
    row_stop: int
    epoch: int
    counter: int
    pushes: int
    memory: MemoryRecord


@dataclass(frozen=True)
class ShardImage:
    """A shard's whole state at one version, as flat float32 arrays."""

    record: ShardRecord
    values: Array
    state: Sequence[Array]


def partial_name(name: str) -> str:
    """Returns a file's name until its checkpoint is finished."""
    return f".{name}.partial"


def file_name(node: str) -> str:
    """Returns the name of a server's file: its node name, with anything unusual in file names replaced."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", node)
    distinct = "" if plain == node else "-" + blake2b(node.encode(), digest_size=4).hexdigest()
    return f"shards-{plain}{distinct}.adam"


@dataclass(frozen=True)
class StoredShard:
    """Where a record's arrays are: `arrays` arrays of `size` elements from byte `offset`, then their checksum."""

    record: ShardRecord
    path: Path
    offset: int
    size: int
    arrays: int


@dataclass(frozen=True)
class CheckpointPlace:
    """Where a checkpoint is read: `folder` is for messages, `open` opens a file of it by name."""

    folder: Path
    open: Callable[[str], BinaryIO]

    @classmethod
    def of(cls, place: str | Path | CheckpointPlace) -> CheckpointPlace:
        """Returns the place, or that of a folder here."""
        if isinstance(place, CheckpointPlace):
            return place
        folder = Path(place)
        return cls(folder, lambda name: open(folder / name, "rb"))


class ShardFile:
    """Reads one file. Descriptions are checked when the file is opened, arrays when they are read."""

    def __init__(
        self, path: Path, expected_bytes: int | None = None, opened: Callable[[], BinaryIO] | None = None
    ) -> None:
        """`opened` opens it, if it is not at `path` here.

        Raises DamagedDataError naming the file, and the shard if one is concerned.
        """
        self.path = path
        self.opened = opened or partial(CheckpointPlace.of(path.parent).open, path.name)
        self.shards: list[StoredShard] = []
        try:
            with self.opened() as file:
                found_bytes = file.seek(0, os.SEEK_END)
                file.seek(0)
                if expected_bytes is not None and found_bytes != expected_bytes:
                    raise _damaged(path, f"expected {expected_bytes} bytes, found {found_bytes}")
                self.descriptor = self._read_descriptor(file)
                self._index(file, found_bytes)
        except FileNotFoundError as error:
            raise _damaged(path, "the file is missing") from error

    def _read_descriptor(self, file: BinaryIO) -> FileDescriptor:
        header = file.read(FILE_HEADER.size)
        if len(header) < FILE_HEADER.size or header[:8] != FILE_MAGIC:
            raise _damaged(self.path, f"expected it to begin with {FILE_MAGIC!r}; found {header[:8]!r}")
        _, version, length = FILE_HEADER.unpack(header)
        if version != FILE_VERSION:
            raise _damaged(self.path, f"expected format version {FILE_VERSION}; found {version}")
        encoded = self._checked(file, header, length, "its header")
        return self._decoded(encoded, FileDescriptor, "its header")

    def _checked(self, file: BinaryIO, before: bytes, length: int, what: str) -> bytes:
        content = file.read(min(length, DESCRIPTION_BYTES_MAX)) if length <= DESCRIPTION_BYTES_MAX else b""
        stored = file.read(CHECKSUM.size)
        if len(content) != length or stored != CHECKSUM.pack(crc32(content, crc32(before))):
            raise _damaged(self.path, f"the checksum of {what} is wrong")
        return content

    def _index(self, file: BinaryIO, file_bytes: int) -> None:
        arrays = 1 + len(self.descriptor.state_names)
        while True:
            header = file.read(RECORD_HEADER.size)
            if len(header) < RECORD_HEADER.size:
                raise _damaged(self.path, f"the file ends after {len(self.shards)} shards without an end mark")
            magic, length, array_bytes = RECORD_HEADER.unpack(header)
            if magic == END_MAGIC:
                self._checked(file, header, 0, "its end mark")
                if array_bytes != len(self.shards) or file.tell() != file_bytes:
                    raise _damaged(self.path, f"expected {array_bytes} shards and its end; found {len(self.shards)}")
                return
            where = f"record {len(self.shards)}"
            if magic != RECORD_MAGIC:
                raise _damaged(self.path, f"{where} begins with {magic!r}; expected {RECORD_MAGIC!r}")
            record = self._decoded(self._checked(file, header, length, where), ShardRecord, where)
            stored = StoredShard(record, self.path, file.tell(), array_bytes // (4 * arrays), arrays)
            if array_bytes != self._size(record) * 4 * arrays:
                raise _damaged(self.path, f"shard {record.shard} has {array_bytes} bytes, which do not match its rows")
            if file.tell() + array_bytes + CHECKSUM.size > file_bytes:
                raise _damaged(self.path, f"shard {record.shard} is truncated")
            self.shards.append(stored)
            file.seek(array_bytes + CHECKSUM.size, os.SEEK_CUR)

    def _size(self, record: ShardRecord) -> int:
        tensors = self.descriptor.tensors
        if not 0 <= record.tensor < len(tensors):
            return -1
        return (record.row_stop - record.row_start) * tensors[record.tensor].row_size

    def _decoded(self, encoded: bytes, kind: type[StructT], what: str) -> StructT:
        try:
            return msgspec.msgpack.decode(encoded, type=kind)
        except UNREADABLE as error:
            raise _damaged(self.path, f"{what} is not in this version's format: {error}") from error

    def read(self, stored: StoredShard) -> ShardImage:
        """Returns a shard. Raises DamagedDataError naming file and shard if the record's checksum is wrong."""
        with self.opened() as file:
            file.seek(stored.offset)
            content = file.read(stored.size * stored.arrays * 4)
            checksum = file.read(CHECKSUM.size)
        if checksum != CHECKSUM.pack(crc32(content)):
            raise _damaged(self.path, f"the checksum of shard {stored.record.shard} is wrong")
        parts = np.frombuffer(content, "<f4").reshape(stored.arrays, stored.size)
        return ShardImage(stored.record, parts[0], list(parts[1:]))


class Checkpoint:
    """A finished checkpoint: all its files, and where each row of each tensor is."""

    def __init__(self, folder: Path, files: Sequence[ShardFile]) -> None:
        self.folder = folder
        self.files = tuple(files)
        self.descriptor = files[0].descriptor
        self._by_tensor: dict[int, list[tuple[StoredShard, ShardFile]]] = {}
        for file in files:
            if file.descriptor.layout_hash != self.descriptor.layout_hash:
                raise _damaged(file.path, "it belongs to another checkpoint: the layout's hash differs")
            for stored in file.shards:
                self._by_tensor.setdefault(stored.record.tensor, []).append((stored, file))
        for found in self._by_tensor.values():
            found.sort(key=lambda pair: pair[0].record.row_start)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.descriptor.tensors

    def images(self) -> Iterator[ShardImage]:
        """Reads and checks every shard."""
        for found in self._by_tensor.values():
            for stored, file in found:
                yield file.read(stored)

    def rows(self, tensor: int, row_start: int, row_stop: int) -> tuple[list[Array], ShardRecord | None]:
        """Returns values and state of a tensor's rows, flat, and the record if one has exactly these rows.

        Raises:
            DamagedDataError: rows are missing, or a shard that holds some of them is damaged.
        """
        row_size = self.tensors[tensor].row_size
        arrays = [
            np.empty((row_stop - row_start) * row_size, np.float32) for _ in range(1 + len(self.descriptor.state_names))
        ]
        exact = None
        for piece in self._pieces(tensor, row_start, row_stop):
            for array, source in zip(arrays, (piece.image.values, *piece.image.state), strict=True):
                array[piece.target] = source[piece.source]
            record = piece.image.record
            if (record.row_start, record.row_stop) == (row_start, row_stop):
                exact = record
        return arrays, exact

    def read_values(self, tensor: int, row_start: int, out: Array) -> None:
        """Reads the values of a tensor's rows from `row_start` on into `out` [rows, ...], C-contiguous.

        No more than one shard is in memory besides. Raises as `rows`.
        """
        flat = out.reshape(-1)
        for piece in self._pieces(tensor, row_start, row_start + len(out)):
            flat[piece.target] = piece.image.values[piece.source]

    def _pieces(self, tensor: int, row_start: int, row_stop: int) -> Iterator[_RowsPiece]:
        """Yields the shards that hold a tensor's rows, in order, and which of their elements these are."""
        row_size, reached = self.tensors[tensor].row_size, row_start
        for stored, file in self._by_tensor.get(tensor, ()):
            record = stored.record
            if record.row_stop <= reached or record.row_start > reached or reached >= row_stop:
                continue
            stop = min(record.row_stop, row_stop)
            source, target = (
                slice((reached - first) * row_size, (stop - first) * row_size)
                for first in (record.row_start, row_start)
            )
            yield _RowsPiece(file.read(stored), source, target)
            reached = stop
        if reached < row_stop:
            raise _damaged(self.folder, f"rows {reached} to {row_stop} of {self.tensors[tensor].name} are missing")


class _RowsPiece(NamedTuple):
    """A shard, and the place of some elements in it and among the rows that are wanted."""

    image: ShardImage
    source: slice
    target: slice


def read_checkpoint(
    place: str | Path | CheckpointPlace, manifest: Mapping[str, Any] | None = None, *, verify: bool = False
) -> Checkpoint:
    """Opens a finished checkpoint.

    Args:
        place: its folder, or how its files are opened where they are elsewhere.
        manifest: its `manifest.json` if already read; `files` lists name, size_bytes, checksum and shards.
        verify: also check every file's checksum against the manifest, and every shard's checksum.

    Raises:
        DamagedDataError: a file is missing, truncated or changed; the message names it, and the shard if known.
    """
    place = CheckpointPlace.of(place)
    folder = place.folder
    described = read_manifest(place) if manifest is None else manifest
    entries = described.get("files")
    if not isinstance(entries, list) or not entries:
        raise _damaged(folder / MANIFEST_NAME, 'expected a list "files" that is not empty')
    files = []
    for entry in entries:
        try:
            name, size_bytes, checksum = str(entry["name"]), int(entry["size_bytes"]), str(entry["checksum"])
        except (KeyError, TypeError, ValueError) as error:
            what = f'each entry of "files" needs name, size_bytes and checksum: {error}'
            raise _damaged(folder / MANIFEST_NAME, what) from error
        if Path(name).name != name:
            raise _damaged(folder / MANIFEST_NAME, f"expected the name of a file in this folder; found {name!r}")
        files.append(ShardFile(folder / name, size_bytes, partial(place.open, name)))
        if verify:
            _verify(files[-1], checksum)
    return Checkpoint(folder, files)


def read_manifest(place: Path | CheckpointPlace) -> dict[str, Any]:
    """Raises DamagedDataError if the manifest is missing or unreadable: the checkpoint is unfinished or damaged."""
    place = CheckpointPlace.of(place)
    path = place.folder / MANIFEST_NAME
    try:
        with place.open(MANIFEST_NAME) as file:
            return decode_manifest(file.read())
    except FileNotFoundError as error:
        raise _damaged(path, "it is missing, so this checkpoint was never finished; use an earlier one") from error
    except (OSError, DamagedDataError) as error:
        raise _damaged(path, str(error)) from error


def load_parameters(folder: str | Path) -> dict[str, Array]:
    """Returns the values of all tensors of a finished checkpoint, by name, in their shapes.

    Raises:
        DamagedDataError: a file is missing or damaged; the message names it.
    """
    checkpoint = read_checkpoint(folder)
    return {
        tensor.name: checkpoint.rows(index, 0, tensor.shape[0])[0][0].reshape(tensor.shape)
        for index, tensor in enumerate(checkpoint.tensors)
    }


def _verify(file: ShardFile, checksum: str) -> None:
    for stored in file.shards:  # first, because these errors name the shard
        file.read(stored)
    found = blake2b(digest_size=16)
    with file.opened() as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    if found.hexdigest() != checksum:
        raise _damaged(file.path, f"expected checksum {checksum}; found {found.hexdigest()}")


def _damaged(path: Path, what: str) -> DamagedDataError:
    return DamagedDataError(f"checkpoint {path}: {what}")

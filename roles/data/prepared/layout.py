"""The files of a prepared set (docs/formats/prepared.md), and the list of them, with a checksum for every byte.

A set is a folder with `prepared.json`, a file of labels for each split, and shards of examples as plain arrays. Files
are divided into blocks of some rows; each block has a CRC-32, and each file a SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from math import prod
from typing import Any, Final, Literal

import msgspec
import numpy as np

from adamctl.errors import DamagedDataError
from adamctl.roles.data.readers.source import CLASSES_MAX, FILE_SPLITS, FileSplit
from adamctl.wire.unreadable import UNREADABLE

Kind = Literal["examples", "labels", "targets", "groups", "weights"]
BESIDE: Final[dict[Kind, np.dtype[Any]]] = {
    "labels": np.dtype("<i4"),
    "targets": np.dtype("<f4"),
    "groups": np.dtype("<i8"),
    "weights": np.dtype("<f8"),
}
"""What comes with examples, and the type of its numbers."""

MANIFEST_NAME: Final = "prepared.json"
FORMAT_VERSION: Final = 1
BLOCK_BYTES: Final = 1 << 20
EXAMPLE_ROWS_MAX: Final = 1024
BESIDE_ROWS_MAX: Final = 1 << 16
SHARD_BYTES: Final = 256 << 20
MANIFEST_BYTES_MAX: Final = 256 << 20
_SUM_BYTES: Final = 65


class PreparedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file.

    Attributes:
        name: in the folder.
        kind: examples, or what comes with them: labels (int32), or targets (float32) in their place; groups (int64) and
            weights (float64) if the source has any.
        split: train or test.
        rows: how many examples it is about.
        row_bytes: length of one of them.
        block_rows: rows of each block; the last one may have fewer.
        checksums: CRC-32 of each block, in order.
        sha256: of the file, in hex digits.
    """

    name: str
    kind: Kind
    split: FileSplit
    rows: int
    row_bytes: int
    block_rows: int
    checksums: tuple[int, ...]
    sha256: str

    @property
    def size_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def block_bytes(self) -> int:
        """Length of every block but the last."""
        return self.block_rows * self.row_bytes

    def block_range(self, block: int) -> tuple[int, int]:
        """Returns where a block begins and ends, in bytes."""
        return block * self.block_bytes, min((block + 1) * self.block_bytes, self.size_bytes)

    def block_lengths(self) -> list[int]:
        """Returns how many rows each block has."""
        return [min(self.block_rows, self.rows - start) for start in range(0, self.rows, self.block_rows)]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a prepared set consists of.

    Attributes:
        format_version: of this layout.
        example_shape: of one example.
        dtype: of the values, `uint8` or `float32`, in little-endian order.
        value_max: the divisor for `scale = "unit"`.
        classes: their names.
        targets: how many numbers a target has; 0: examples have labels.
        made_from: where the examples came from, for people.
        files: all files of the folder but this list.
    """

    format_version: int
    example_shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    value_max: float
    classes: tuple[str, ...]
    targets: int
    made_from: str
    files: tuple[PreparedFile, ...]

    @property
    def values(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def example_bytes(self) -> int:
        return prod(self.example_shape) * self.values.itemsize

    def of(self, split: FileSplit, kind: Kind) -> list[PreparedFile]:
        """Returns the files of one kind of a split, in order."""
        return [file for file in self.files if (file.split, file.kind) == (split, kind)]


def block_rows_for(kind: Kind, row_bytes: int) -> int:
    """Returns how many rows a block has: as many as fit into BLOCK_BYTES, at least 1 and not too many."""
    most = EXAMPLE_ROWS_MAX if kind == "examples" else BESIDE_ROWS_MAX
    return min(max(BLOCK_BYTES // max(row_bytes, 1), 1), most)


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the bytes of `prepared.json`: one line of JSON, and a line with its SHA-256."""
    line = msgspec.json.encode(manifest) + b"\n"
    return line + _sum(line)


def decode_manifest(content: bytes, origin: str) -> Manifest:
    """Returns the list in the bytes of `prepared.json`.

    Raises:
        DamagedDataError: a byte of them has changed, or they describe no set that can be; the message names `origin`.
    """
    line, found = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
    if found != _sum(line):
        raise DamagedDataError(
            f"{origin}: expected it as it was written, found a wrong checksum; prepare the set again, "
            "or restore the file"
        )
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except UNREADABLE as error:
        raise DamagedDataError(f"{origin}: expected the list of a prepared set, found: {error}") from error
    if problem := next(_problems(manifest), None):
        raise DamagedDataError(f"{origin}: {problem}")
    return manifest


def _sum(line: bytes) -> bytes:
    return sha256(line).hexdigest().encode() + b"\n"


def _problems(manifest: Manifest) -> Iterator[str]:
    if manifest.format_version != FORMAT_VERSION:
        yield f"expected format version {FORMAT_VERSION}, found {manifest.format_version}: a newer adamctl wrote it"
    if not manifest.example_shape or min(manifest.example_shape) < 1 or not 0 < manifest.value_max < float("inf"):
        yield f"expected examples of some shape, found {list(manifest.example_shape)}"
    if len(manifest.classes) > CLASSES_MAX:
        yield f"expected at most {CLASSES_MAX} classes, found {len(manifest.classes)}"
    sizes = {kind: dtype.itemsize for kind, dtype in BESIDE.items()}
    sizes |= {"examples": manifest.example_bytes, "targets": 4 * manifest.targets}
    for file in manifest.files:
        if "/" in file.name or file.name in ("", ".", "..", MANIFEST_NAME):
            yield f"expected names of files in the folder, found {file.name!r}"
        if file.rows < 0 or file.block_rows < 1 or file.row_bytes != sizes[file.kind]:
            yield f"{file.name}: expected rows of {sizes[file.kind]} bytes, found {file.rows} of {file.row_bytes}"
        elif len(file.checksums) != -(-file.rows // file.block_rows):
            yield f"{file.name}: expected a checksum for each of its blocks, found {len(file.checksums)}"
    for split in FILE_SPLITS:
        counts = {kind: sum(file.rows for file in manifest.of(split, kind)) for kind in sizes}
        needed: Kind = "targets" if manifest.targets else "labels"
        for kind in BESIDE:
            if counts[kind] != counts["examples"] and (counts[kind] or kind == needed):
                yield f"expected as many {kind} as examples of {split}, found {counts[kind]} and {counts['examples']}"

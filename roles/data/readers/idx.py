"""MNIST-style IDX files, plain or gzip: a magic number with the dtype, the dimensions, then the values.

Format: four bytes 0, 0, dtype, number of dimensions; each dimension as a big-endian 32-bit number; the values in C
order, big-endian (LeCun, Cortes, Burges: "The MNIST database of handwritten digits", at the end of the page).
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import (
    FileSplit,
    Peek,
    TableSource,
    check_fits,
    check_same_kind,
    checked_labels,
    peek_at_table,
)

_DTYPES: Final = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DIMENSIONS_MAX: Final = 4
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # zlib's wbits for a gzip stream with its checksum
_DEFLATE_RATIO_MAX: Final = 1032  # no deflate stream expands by more than this
_PIECE_BYTES: Final = 1 << 20
_HEADER_BYTES_MAX: Final = 4 + 4 * _DIMENSIONS_MAX
_NAMES: Final[dict[FileSplit, str]] = {"train": "train", "test": "t10k"}

READER: Final = Reader(
    "idx", (), open=f"{__name__}:open_idx", peek=f"{__name__}:peek_idx", files=f"{__name__}:idx_files"
)


def open_idx(folder: Path, input_shape: Sequence[int] | None = None) -> TableSource:
    """Opens a folder with the images and labels of the training and test sets under the usual names.

    Names: `train-images-idx3-ubyte` or `train-images.idx3-ubyte`, likewise train-labels, t10k-images and t10k-labels,
    each with or without `.gz`; the test set may be missing. Byte images stay bytes in memory.

    Raises:
        ConfigurationError: a file is missing, or the images do not fit the model's input.
        DamagedDataError: a file's header, length or checksum is wrong; the message names it.
    """
    arrays: dict[FileSplit, tuple[NDArray[Any], NDArray[np.int32]]] = {}
    stored_bytes = 0
    for split, (image_path, label_path) in _files(folder).items():
        images, labels = read_idx(image_path), read_idx(label_path)
        _check_dimensions(image_path, images.ndim)
        if images.dtype != np.uint8:
            images = images.astype(np.float32)
        arrays[split] = images, checked_labels(labels, len(images), str(label_path))
        stored_bytes += image_path.stat().st_size + label_path.stat().st_size
    train = arrays["train"][0]
    arrays.setdefault("test", (train[:0], np.empty(0, np.int32)))
    check_same_kind(train, arrays["test"][0], str(folder))
    value_max = 255.0 if train.dtype == np.uint8 else 1.0
    return TableSource(
        "idx",
        arrays,
        value_max=value_max,
        stored_bytes=stored_bytes,
        input_shape=input_shape,
        origin=str(folder),
    )


def peek_idx(folder: Path, input_shape: Sequence[int] | None, examples_max: int, seconds_max: float = math.inf) -> Peek:
    """Reads headers, labels and the first examples of a folder that `open_idx` would open; that takes no time to limit.

    Raises:
        ConfigurationError, DamagedDataError: like `open_idx`, for what was read.
    """
    parts: dict[FileSplit, tuple[tuple[int, ...], NDArray[Any], NDArray[np.int32]]] = {}
    for split, (image_path, label_path) in _files(folder).items():
        shape, first = _peek(image_path, examples_max)
        _check_dimensions(image_path, len(shape))
        parts[split] = shape, first, checked_labels(read_idx(label_path), shape[0], str(label_path))
    shape, first, labels = parts["train"]
    parts.setdefault("test", ((0, *shape[1:]), first[:0], labels[:0]))
    return peek_at_table(parts, input_shape, str(folder))


def idx_files(folder: Path) -> list[Path]:
    """Returns the files of a folder that `open_idx` would open. Raises ConfigurationError: one is missing."""
    return [path for pair in _files(folder).values() for path in pair]


def _peek(path: Path, rows_max: int) -> tuple[tuple[int, ...], NDArray[Any]]:
    """Returns the shape in a file's header and its first rows; a file of the wrong length is damaged."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
        stored = found = file.seek(0, os.SEEK_END)
        if packed:  # the last four bytes are the uncompressed length modulo 2^32 (RFC 1952)
            file.seek(max(0, stored - 4))
            found = int.from_bytes(file.read(4), "little")
        file.seek(0)
        unpack = _Unpacker(path, file.read() if packed else file.read(_HEADER_BYTES_MAX))
        dtype, shape, header_bytes = _header(path, unpack)
        row_bytes = prod(shape[1:]) * dtype.itemsize
        expected = header_bytes + prod(shape) * dtype.itemsize
        if found != (expected % 2**32 if packed else expected) or expected > stored * _DEFLATE_RATIO_MAX:
            read_idx(path)  # raises what is wrong, unless it has several gzip members
        rows = min(rows_max, shape[0])
        if packed:
            content = unpack.take(rows * row_bytes)
        else:
            file.seek(header_bytes)
            content = file.read(rows * row_bytes)
    values = np.frombuffer(content, dtype).reshape(rows, *shape[1:])
    return shape, values.astype(np.float32, copy=False) if dtype.itemsize > 1 else values


def _check_dimensions(path: Path, found: int) -> None:
    if found < 2:
        raise DamagedDataError(f"{path}: expected images (2 dimensions or more), found {found}")


def _files(folder: Path) -> dict[FileSplit, tuple[Path, Path]]:
    """Returns the image and label files of each split; the test split may be missing."""
    if not folder.is_dir():
        raise ConfigurationError(f"expected a folder with IDX files, found a file: {folder}; name its folder")
    prefixes = {
        split: prefix for split, prefix in _NAMES.items() if split == "train" or any(folder.glob(f"{prefix}-*"))
    }
    return {
        split: (_find(folder, f"{prefix}-images"), _find(folder, f"{prefix}-labels"))
        for split, prefix in prefixes.items()
    }


def _find(folder: Path, stem: str) -> Path:
    """Finds a file under one of its names; prefers a plain file to a compressed one."""
    for ending in ("", ".gz"):
        for path in sorted(folder.glob(f"{stem}*ubyte{ending}")):
            rest = path.name.removeprefix(stem).removesuffix(ending)
            if rest in ("-idx3-ubyte", ".idx3-ubyte", "-idx1-ubyte", ".idx1-ubyte"):
                return path
    dimensions = 3 if stem.endswith("images") else 1
    raise ConfigurationError(
        f"expected {stem}-idx{dimensions}-ubyte or {stem}-idx{dimensions}-ubyte.gz in {folder}, found neither; "
        "look whether that is the folder you mean"
    )


def read_idx(path: Path) -> NDArray[Any]:
    """Returns the array of one IDX file, native byte order.

    Raises:
        ConfigurationError: it needs more memory than there is.
        DamagedDataError: the file is not IDX, or its length differs from its header (expected and found bytes).
    """
    unpack = _Unpacker(path, path.read_bytes())
    dtype, shape, header_bytes = _header(path, unpack)
    values = unpack.rest(header_bytes, prod(shape) * dtype.itemsize)
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _header(path: Path, unpack: _Unpacker) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Returns type and shape of the values and the length of the header."""
    magic = unpack.take(4)
    kind, dimensions = magic[2], magic[3]
    if magic[:2] != b"\0\0" or kind not in _DTYPES or not 1 <= dimensions <= _DIMENSIONS_MAX:
        raise DamagedDataError(
            f"{path}: expected an IDX file (first bytes 00 00, a type of {', '.join(f'{k:02x}' for k in _DTYPES)}, "
            f"1 to {_DIMENSIONS_MAX} dimensions), found {magic.hex(' ')}"
        )
    header = unpack.take(4 * dimensions)
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    return np.dtype(_DTYPES[kind]), shape, 4 + 4 * dimensions


class _Unpacker:
    """Returns the bytes of a plain or gzip file and never allocates more than its length can expand to."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = memoryview(content)
        self._position = 0
        self._inflate = zlib.decompressobj(_GZIP_WINDOW) if content[:2] == _GZIP_MAGIC else None
        self._spare = b""  # inflated but not returned yet

    def take(self, size: int) -> bytes:
        """Returns the next `size` bytes of the header."""
        piece = self._read(size)
        if len(piece) != size:
            raise DamagedDataError(f"{self._path}: expected a header of {size} more bytes, found {len(piece)}")
        return piece

    def rest(self, header_bytes: int, size: int) -> bytearray:
        """Returns the values, which must be the last `size` bytes of the file."""
        expected = f"{self._path}: expected {header_bytes + size} bytes (header {header_bytes}, values {size})"
        ratio_max = 1 if self._inflate is None else _DEFLATE_RATIO_MAX
        if size > len(self._content) * ratio_max:
            found = f"{len(self._content)} bytes" + (" of gzip" if self._inflate is not None else "")
            raise DamagedDataError(f"{expected}, found {found}: the file is cut short; fetch it again")
        check_fits(size, str(self._path))
        values = bytearray(size)
        filled = 0
        while filled < size and (piece := self._read(min(_PIECE_BYTES, size - filled))):
            values[filled : filled + len(piece)] = piece
            filled += len(piece)
        if filled < size:
            raise DamagedDataError(f"{expected}, found {header_bytes + filled}: the file is cut short; fetch it again")
        if self._read(1):
            raise DamagedDataError(f"{expected}, found more: the file is too long or not what its header says")
        if self._inflate is not None and not self._inflate.eof:
            raise DamagedDataError(f"{expected}, found a gzip stream without its end; fetch the file again")
        return values

    def _read(self, size: int) -> bytes:
        """Returns up to `size` bytes, none at the end."""
        if self._inflate is None:
            piece = bytes(self._content[self._position : self._position + size])
            self._position += len(piece)
            return piece
        while len(self._spare) < size and not self._inflate.eof:
            pending = self._inflate.unconsumed_tail
            if not pending:
                pending = bytes(self._content[self._position : self._position + _PIECE_BYTES])
                self._position += len(pending)
                if not pending:
                    break
            try:
                self._spare += self._inflate.decompress(pending, size - len(self._spare))
            except zlib.error as error:
                raise DamagedDataError(
                    f"{self._path}: expected gzip, found damage ({error}); fetch it again"
                ) from error
        piece, self._spare = self._spare[:size], self._spare[size:]
        return piece

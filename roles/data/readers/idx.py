"""MNIST-style IDX files, plain or gzip: a magic number with the dtype, the dimensions, then the values.

Format: four bytes 0, 0, dtype, number of dimensions; each dimension as a big-endian 32-bit number; the values in C
order, big-endian (LeCun, Cortes, Burges: "The MNIST database of handwritten digits", at the end of the page).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.source import FileSplit, TableSource, check_fits, check_same_kind, checked_labels

_DTYPES: Final = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DIMENSIONS_MAX: Final = 4
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # zlib's number for: a gzip stream with its checksum
_DEFLATE_RATIO_MAX: Final = 1032  # no deflate stream grows more than this
_PIECE_BYTES: Final = 1 << 20
_NAMES: Final[dict[FileSplit, str]] = {"train": "train", "test": "t10k"}


def open_idx(folder: Path, input_shape: Sequence[int] | None = None) -> TableSource:
    """Opens a folder with the images and labels of training and test set in the usual spellings.

    Names: `train-images-idx3-ubyte` or `train-images.idx3-ubyte`, likewise train-labels, t10k-images and t10k-labels,
    each with or without `.gz`. Byte images keep their bytes in memory.

    Raises:
        ConfigurationError: a file is missing, or the images do not fit the model's input.
        DamagedDataError: a file's header, length or checksum is wrong; the message names it.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"expected a folder with IDX files, found a file: {folder}")
    arrays: dict[FileSplit, tuple[NDArray[Any], NDArray[np.int32]]] = {}
    stored_bytes = 0
    for split, prefix in _NAMES.items():
        image_path, label_path = _find(folder, f"{prefix}-images"), _find(folder, f"{prefix}-labels")
        images, labels = read_idx(image_path), read_idx(label_path)
        if images.ndim < 2:
            raise DamagedDataError(f"{image_path}: expected images (2 dimensions or more), found {images.ndim}")
        if images.dtype != np.uint8:
            images = images.astype(np.float32)
        arrays[split] = images, checked_labels(labels, len(images), str(label_path))
        stored_bytes += image_path.stat().st_size + label_path.stat().st_size
    train, test = arrays["train"][0], arrays["test"][0]
    check_same_kind(train, test, str(folder))
    value_max = 255.0 if train.dtype == np.uint8 else 1.0
    return TableSource(
        "idx",
        arrays,
        value_max=value_max,
        stored_bytes=stored_bytes,
        input_shape=input_shape,
        origin=str(folder),
    )


def _find(folder: Path, stem: str) -> Path:
    """Finds one file in one of its spellings; of a plain and a compressed one, the plain one."""
    for ending in ("", ".gz"):
        for path in sorted(folder.glob(f"{stem}*ubyte{ending}")):
            rest = path.name.removeprefix(stem).removesuffix(ending)
            if rest in ("-idx3-ubyte", ".idx3-ubyte", "-idx1-ubyte", ".idx1-ubyte"):
                return path
    dimensions = 3 if stem.endswith("images") else 1
    raise ConfigurationError(
        f"expected {stem}-idx{dimensions}-ubyte or {stem}-idx{dimensions}-ubyte.gz in {folder}, found neither"
    )


def read_idx(path: Path) -> NDArray[Any]:
    """Returns the array of one IDX file, native byte order.

    Raises:
        ConfigurationError: it takes more memory than there is.
        DamagedDataError: the file is not IDX, or shorter or longer than its header says (expected and found bytes).
    """
    content = path.read_bytes()
    unpack = _Unpacker(path, content)
    magic = unpack.take(4)
    kind, dimensions = magic[2], magic[3]
    if magic[:2] != b"\0\0" or kind not in _DTYPES or not 1 <= dimensions <= _DIMENSIONS_MAX:
        raise DamagedDataError(
            f"{path}: expected an IDX file (first bytes 00 00, a type of {', '.join(f'{k:02x}' for k in _DTYPES)}, "
            f"1 to {_DIMENSIONS_MAX} dimensions), found {magic.hex(' ')}"
        )
    header = unpack.take(4 * dimensions)
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    dtype = np.dtype(_DTYPES[kind])
    values = unpack.rest(4 + 4 * dimensions, prod(shape) * dtype.itemsize)
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


class _Unpacker:
    """Hands out the bytes of a plain or gzip file and never allocates more than its length can stand for."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = memoryview(content)
        self._position = 0
        self._inflate = zlib.decompressobj(_GZIP_WINDOW) if content[:2] == _GZIP_MAGIC else None
        self._spare = b""  # inflated but not handed out yet

    def take(self, size: int) -> bytes:
        """Returns the next `size` bytes of the header."""
        piece = self._read(size)
        if len(piece) != size:
            raise DamagedDataError(f"{self._path}: expected a header of {size} more bytes, found {len(piece)}")
        return piece

    def rest(self, header_bytes: int, size: int) -> bytearray:
        """Returns the values, which must be exactly `size` bytes to the end of the file."""
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

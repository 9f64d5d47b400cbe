"""Reads examples from .npz archives some rows at a time, so that an archive may be larger than memory."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError

NAMES = ("x", "x_test", "images", "test_images")
"""Names under which an archive holds examples; one with a single array may call it anything."""
_ENDING = ".npy"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header(NamedTuple):
    """What an archive says of its array. `by_columns`: its last rows are not one piece at its end."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]


def rows_of(file: Path, count: int) -> Iterator[NDArray[Any]]:
    """Yields the rows of an archive's array of examples, up to `count` at a time; the first part may be empty.

    An array that was written by columns is read whole.

    Raises:
        ConfigurationError: it has several arrays, and none under a name of `NAMES`.
        DamagedDataError: it is no archive of plain arrays, or damaged; what was yielded before may be wrong, too.
    """
    with _damage_named(file), zipfile.ZipFile(file) as archive:
        name = _name_of(file, archive)
        with archive.open(name) as stream:
            header = _read_header(stream)
            if header.by_columns or header.dtype.hasobject or not header.shape:
                with np.load(file, allow_pickle=False) as loaded:
                    whole: NDArray[Any] = loaded[name.removesuffix(_ENDING)]
                yield from (whole[start : start + count] for start in range(0, max(len(whole), 1), count))
                return
            yield from _rows(stream, header, count)


def _rows(stream: IO[bytes], header: Header, count: int) -> Iterator[NDArray[Any]]:
    left, *extents = header.shape
    row_bytes = prod(extents) * header.dtype.itemsize
    while True:
        taken = min(count, left)
        content = stream.read(taken * row_bytes)
        if len(content) != taken * row_bytes:
            raise ValueError(f"{header.shape[0] - left} of {header.shape[0]} rows, and then its end")
        left -= taken
        yield np.frombuffer(content, header.dtype).reshape(taken, *extents)
        if not left:
            stream.read(1)  # its checksum is looked at when its end is read
            return


def _read_header(stream: IO[bytes]) -> Header:
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"an array of format {version[0]}.{version[1]}; expected 1.0 or 2.0")
    return Header(*_HEADERS[version](stream))


def _name_of(file: Path, archive: zipfile.ZipFile) -> str:
    """Returns the member with the examples."""
    held = [name.removesuffix(_ENDING) for name in archive.namelist() if name.endswith(_ENDING)]
    names = [name for name in NAMES if name in held] or held[: 1 if len(held) == 1 else 0]
    if not names:
        found = ", ".join(held) or "none"
        raise ConfigurationError(f"{file}: expected one array, or one called {', '.join(NAMES)}; found {found}")
    return names[0] + _ENDING


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise DamagedDataError(f"{file}: expected an .npz archive of plain arrays, found: {error}") from error

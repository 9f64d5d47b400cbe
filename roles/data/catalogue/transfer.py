"""What downloads have in common: one at a time into a folder, reasons of failures, files that are there for good."""

from __future__ import annotations

import fcntl
import os
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError

PIECE_BYTES: Final = 256 << 10

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes present so far, and its total bytes (0: not known)."""


class TransferError(Exception):
    """A mirror did not give the complete file."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Locks the folder, since two fetches into it would write the same temporary files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(f"another `adamctl data fetch` is writing into {folder}; wait for it") from error
        yield
    finally:
        os.close(handle)


def reason_of(error: Exception) -> str:
    """Returns an error of a download in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return f"{type(error).__name__}: {error}"


def failure(name: str, damaged: list[str], reasons: list[str]) -> DamagedDataError | UnreachableError:
    """Returns the error of a file that no mirror gave: `damaged` gave another one, `reasons` are of those without."""
    if damaged:
        lines = "\n".join((*damaged, *reasons))
        return DamagedDataError(f"{name}: no mirror gave the right file; nothing was replaced\n{lines}")
    lines = "\n".join(reasons)
    return UnreachableError(
        f"{name} could not be downloaded; run the command again to continue, or give another source with --url\n{lines}"
    )


def sync(path: Path) -> None:
    """Waits until a file is on the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())

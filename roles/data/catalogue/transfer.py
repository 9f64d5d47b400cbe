"""What downloads have in common: one at a time into a folder, reasons of failures, files that are there for good."""

from __future__ import annotations

import fcntl
import os
import urllib.error
from collections.abc import Callable, Iterable, Iterator
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
def writing_into(folder: Path) -> Iterator[None]:
    """Makes a folder, and locks it, since two fetches into it would write the same temporary files.

    Raises:
        ConfigurationError: another fetch has locked it, or it cannot be made or, within, written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            yield
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error}; choose another folder with --data") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
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


def take_from_mirrors(name: str, bases: Iterable[str], take: Callable[[str], str]) -> None:
    """Tries mirrors in turn until one gives the right file.

    Args:
        bases: what comes before the name in their addresses.
        take: of an address, downloads the file and puts it into its place. Returns what is wrong with it, or "".

    Raises:
        DamagedDataError: a mirror gave another file, and none the right one.
        UnreachableError: no mirror gave one: `take` raised TransferError each time.
    """
    damaged: list[str] = []
    reasons: list[str] = []
    for base in bases:
        try:
            problem = take(base + name)
        except TransferError as error:
            reasons.append(f"  {base}{name}: {error}")
            continue
        if not problem:
            return
        damaged.append(f"  {base}{name}: {problem}")
    lines = "\n".join((*damaged, *reasons))
    if damaged:
        raise DamagedDataError(f"{name}: no mirror gave the right file; nothing was replaced\n{lines}")
    raise UnreachableError(
        f"{name} could not be downloaded; run the command again to continue, or give another source with --url\n{lines}"
    )


def sync(path: Path) -> None:
    """Waits until a file is on the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())

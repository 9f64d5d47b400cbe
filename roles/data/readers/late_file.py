"""Files that stay open and are read while a run goes on: what is read is counted, and a change is noticed."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Final

from adamctl.errors import ChangedDataError, DamagedDataError

ANOTHER: Final = "the file that was opened, found one changed since then"


def check_unchanged(path: Path, size_bytes: int, changed_ns: int) -> os.stat_result:
    """Returns what is known of a file that had this size and time of change when its set was opened.

    Raises:
        ChangedDataError: it has others now, or is gone.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise ChangedDataError(f"{path}: expected it as when it was opened: {error}") from error
    if found.st_size != size_bytes:
        raise changed(path, f"{size_bytes} bytes as when it was opened, found {found.st_size}")
    if found.st_mtime_ns != changed_ns:
        raise changed(path, ANOTHER)
    return found


def changed(path: object, what: str) -> ChangedDataError:
    """Returns the error for a file of which `what` was expected, and what was found."""
    return ChangedDataError(f"{path}: expected {what}; do not change data while a run reads them")


class ReadCounter:
    """Counts the bytes that were read from files. Thread-safe."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.total_bytes += size_bytes


class LateFile:
    """A file read at any place by any number of threads, as it was when it was opened."""

    def __init__(self, path: Path, counter: ReadCounter) -> None:
        """Raises OSError."""
        self.path = path
        self._counter = counter
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._opened = os.fstat(self._file)

    def check(self) -> None:
        """Raises ChangedDataError if the file was changed, replaced or removed since it was opened."""
        if check_unchanged(self.path, self._opened.st_size, self._opened.st_mtime_ns).st_ino != self._opened.st_ino:
            raise changed(self.path, ANOTHER)

    def read_into(self, target: memoryview, offset_bytes: int) -> None:
        """Fills `target`, whose items are bytes, with what is at this place.

        Raises:
            DamagedDataError: the file ends before.
            ChangedDataError: it has changed, or cannot be read.
        """
        done = 0
        try:
            while done < len(target):
                found = os.preadv(self._file, [target[done:]], offset_bytes + done)
                if not found:
                    self.check()
                    raise DamagedDataError(
                        f"{self.path}: expected {len(target)} bytes from byte {offset_bytes} on, found {done}"
                    )
                done += found
        except OSError as error:
            raise ChangedDataError(f"{self.path}: byte {offset_bytes + done} cannot be read: {error}") from error
        finally:
            self._counter.add(done)

"""Files that stay open and are read while a run goes on: what is read is counted, and a change is noticed."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from adamctl.errors import DamagedDataError


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
        """Raises DamagedDataError if the file was changed, replaced or removed since it was opened."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise DamagedDataError(f"{self.path}: expected it as when it was opened: {error}") from error
        opened = self._opened
        if found.st_size != opened.st_size:
            what = f"{opened.st_size} bytes as when it was opened, found {found.st_size}"
        elif (found.st_mtime_ns, found.st_ino) != (opened.st_mtime_ns, opened.st_ino):
            what = "the file that was opened, found one changed since then"
        else:
            return
        raise DamagedDataError(f"{self.path}: expected {what}; do not change data while a run reads them")

    def read_into(self, target: memoryview, offset_bytes: int) -> None:
        """Fills `target`, whose items are bytes, with what is at this place.

        Raises:
            DamagedDataError: the file ends before, or cannot be read.
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
            raise DamagedDataError(f"{self.path}: byte {offset_bytes + done} cannot be read: {error}") from error
        finally:
            self._counter.add(done)

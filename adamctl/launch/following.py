"""Follows the metrics of a run while it goes on, from another process: the run knows nothing of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import is_live
from adamctl.launch.sinks.measurement import Measuring, WentBack
from adamctl.launch.sinks.plugins import Sink
from adamctl.roles.coordinator.records import METRICS_NAME
from adamctl.wire.unreadable import UNREADABLE

LOOK_EVERY_S: Final = 0.5
SILENT_S: Final = 15.0
"""Seconds without a new line after which a run that has no note here counts as over: it may run on another machine."""
LINE_BYTES_MAX: Final = 16 << 20
"""A longer line is no line of metrics: it is dropped."""
_READ_BYTES: Final = 1 << 20
_LINE_BEGINS: Final = b'{"time": '


class MetricsTail:
    """The lines of a file that another process appends to.

    An unfinished last line is kept until it is finished. A file that was cut off, or replaced by another, is read again
    from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: IO[bytes] | None = None
        self._unfinished = b""

    def added(self, begin_anew: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """Yields the objects in lines that were added since the last call; calls `begin_anew` before the first again.

        Raises:
            ConfigurationError: the file cannot be read; not if it does not exist yet.
        """
        try:
            if self._stream is not None and self._replaced(self._stream):
                self.close()
                begin_anew()
            if self._stream is None:
                self._stream = self._path.open("rb")
            while data := self._stream.read(_READ_BYTES):
                yield from self._lines(data)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Closes the file; the next call begins at its beginning."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._unfinished = None, b""

    def _replaced(self, stream: IO[bytes]) -> bool:
        opened, found = os.fstat(stream.fileno()), os.stat(self._path)
        return (opened.st_ino, opened.st_dev) != (found.st_ino, found.st_dev) or found.st_size < stream.tell()

    def _lines(self, data: bytes) -> Iterator[dict[str, Any]]:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > LINE_BYTES_MAX:
            self._unfinished = b""
        for line in lines:
            if (found := _object(line)) is not None:
                yield found


def _object(line: bytes) -> dict[str, Any] | None:
    """Returns a line's object. After what a crash left unfinished the next line stands without a line end between."""
    for text in (line, line[max(line.rfind(_LINE_BEGINS), 0) :]):
        try:
            found = msgspec.json.decode(text)
        except UNREADABLE:
            continue
        return found if isinstance(found, dict) else None
    return None


def follow(folder: Path, state: Path, sink: Sink, *, look_every_s: float = LOOK_EVERY_S) -> tuple[int, str]:
    """Hands what a run measures to a sink, from its beginning until it ends; the sink stays open.

    Args:
        folder: the run folder.
        state: folder of notes of live runs, which say whether the run is in progress.

    Returns:
        How many measurements there were, and the run's final state, "" if it ended without one.

    Raises:
        ConfigurationError: the metrics cannot be read.
        RunFailedError: the sink failed.
    """
    tail, measuring, count = MetricsTail(folder / METRICS_NAME), Measuring(), 0
    heard_s = time.monotonic()
    try:
        while True:
            live = is_live(folder, state)  # before reading, so that what it wrote last is read
            added = 0
            for fields in tail.added(measuring.begin_anew):
                added += 1
                for found in measuring.taken(fields):
                    if isinstance(found, WentBack):
                        sink.went_back(found)
                    else:
                        sink.add(found)
                        count += 1
            if added:
                heard_s = time.monotonic()
                sink.flush()
            gone = not live and (time.monotonic() - heard_s > SILENT_S or not (folder / METRICS_NAME).exists())
            if gone or measuring.final_state:
                return count, measuring.final_state
            time.sleep(look_every_s)
    finally:
        tail.close()

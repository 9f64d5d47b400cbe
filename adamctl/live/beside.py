"""A terminal or pipe that a thread writes to, so that a run does not wait for a reader that stands still.

A terminal stops reading at Ctrl-S or when the machine behind it sleeps, a pager when its page is full.
"""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from typing import Any, TextIO

from adamctl.roles.durable_file import write_all

FLUSH_S = 0.1
"""Seconds that a reader may take before it counts as one that stands still."""
CLOSE_S = 1.0
PENDING_BYTES_MAX = 1 << 20
"""Bytes that wait for the reader; what comes then is dropped."""


class Beside:
    """What `print` and rich need of a stream, for one thread; everything else is as in the stream itself.

    `flush` returns when everything is written, or after `FLUSH_S` seconds: at once until such a reader has caught up.
    """

    def __init__(self, stream: TextIO) -> None:
        """Raises OSError: the stream is not of the system."""
        self._stream, self._descriptor = stream, stream.fileno()
        self._pending = bytearray()
        self._changed = threading.Condition()
        self._stands_still = self._closed = False
        self._error: OSError | None = None
        with suppress(OSError):  # then the first write fails as well
            stream.flush()
        threading.Thread(target=self._work, name="view", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def behind(self) -> bool:
        """Whether the reader has not read yet what was written."""
        return bool(self._pending)

    def write(self, text: str) -> int:
        """Has a text written. Raises OSError: an earlier one could not be."""
        data = text.encode(self._stream.encoding, self._stream.errors or "strict")
        with self._changed:
            if self._error is not None:
                raise self._error
            if len(self._pending) + len(data) <= PENDING_BYTES_MAX:
                self._pending += data
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """See the class. Raises OSError: what was written could not be."""
        with self._changed:
            if not self._stands_still:
                self._stands_still = not self._changed.wait_for(lambda: not self._pending, FLUSH_S)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Waits `CLOSE_S` seconds at most for the reader; the stream stays open."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending, CLOSE_S)
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                data = bytes(self._pending)
            if not data:
                return
            failed: OSError | None = None
            try:
                write_all(self._descriptor, data)
            except OSError as error:
                failed = error
            with self._changed:
                self._error = failed
                del self._pending[: len(self._pending) if failed else len(data)]
                self._stands_still = self._stands_still and bool(self._pending)
                self._changed.notify_all()
            if failed is not None:
                return


def beside(stream: TextIO) -> Beside | None:
    """Returns what writes to a file of the system; None for any other stream, which keeps nobody waiting."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    with suppress(OSError, ValueError):
        return Beside(stream)
    return None

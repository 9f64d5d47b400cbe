"""Chooses how progress is shown: in place on a terminal, else in plain lines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, TextIO, cast

from adamctl.live.beside import Beside, beside
from adamctl.live.plain import PlainReporter
from adamctl.live.reading import ProcessReading
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.log import json_line


class Reporter(Protocol):
    """Where a front end sends progress. All of it goes to stderr; stdout is for results."""

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Unread:
    """A reporter that stops writing when its stream (a terminal or pipe) is closed, so that the run continues.

    Pictures are left out while the reader of the stream does not keep up.
    """

    def __init__(self, inner: Reporter, stream: TextIO, written: Beside | None = None) -> None:
        """`written`: what the inner reporter writes to; None: the stream itself."""
        self._inner: Reporter | None = inner
        self._stream, self._written = stream, written

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None:
        """Shows progress while the stream is open and read."""
        if self._written is None or not self._written.behind:
            self._write(lambda inner: inner.show(progress, readings))

    def note(self, text: str) -> None:
        """Writes a line while the stream is open."""
        self._write(lambda inner: inner.note(text))

    def close(self) -> None:
        """Restores the terminal if it is still there."""
        self._write(lambda inner: inner.close())
        if self._written is not None:
            self._written.close()

    def _write(self, call: Callable[[Reporter], None]) -> None:
        if self._inner is None:
            return
        try:
            call(self._inner)
        except OSError:
            self._inner = None
            with suppress(OSError, ValueError):  # drops what is still in the stream's buffer
                nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


def choose_reporter(stream: TextIO, *, plain: bool, log_format: str = "text") -> Reporter:
    """Returns the display for `stream`: plain lines if asked for, or if it is not a terminal that can redraw.

    `log_format`: with `json` each line is an object as in roles' logs.
    """
    written = beside(stream)
    out = stream if written is None else cast(TextIO, written)
    if log_format == "json":
        write = lambda text: print(json_line("INFO", "front", "front", text), file=out, flush=True)  # noqa: E731
        return Unread(PlainReporter(write, time.monotonic), stream, written)
    if plain or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return Unread(PlainReporter(lambda line: print(line, file=out, flush=True), time.monotonic), stream, written)
    from adamctl.live.display import RichReporter  # rich takes a while to import; roles are starting meanwhile

    return Unread(RichReporter(out), stream, written)

"""Chooses how progress is shown: in place on a terminal, else in plain lines."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from adamctl.live.plain import PlainReporter
from adamctl.live.view import ProcessReading
from adamctl.roles.coordinator.progress import RunProgress


class Reporter(Protocol):
    """Where a front end sends what it learns. All of it goes to stderr; stdout is for results."""

    def show(self, progress: RunProgress, readings: Mapping[str, ProcessReading]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def choose_reporter(stream: TextIO, *, plain: bool) -> Reporter:
    """Returns the display for `stream`: plain lines if asked for, or if it is no terminal that can be drawn on."""
    if plain or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return PlainReporter(lambda line: print(line, file=stream, flush=True), time.monotonic)
    from adamctl.live.display import RichReporter  # rich takes a while to import; roles are starting meanwhile

    return RichReporter(stream)

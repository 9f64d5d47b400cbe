"""Logs of a run's processes, read back: lines of text or of JSON, and what was put aside when a log grew too long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adamctl.config.names import printable

LOG_LINES_MAX = 20
LOG_BYTES_MAX = 64 << 10
TRACEBACK = "Traceback (most recent call last):"
_KEYS = ("time", "level", "role", "node", "message")


def as_text(line: str) -> list[str]:
    """Returns the lines that a log in text would have in place of one of JSON; any other line as it is."""
    if not line.startswith("{"):
        return [line]
    try:
        values: Any = json.loads(line)
    except ValueError:
        return [line]
    if not isinstance(values, dict) or not all(isinstance(values.get(key), str) for key in _KEYS):
        return [line]
    first = printable(" ".join(values[key] for key in _KEYS))
    exception = values.get("exception")
    return [first, *(printable(exception, keep="\n").split("\n") if isinstance(exception, str) else [])]


def when(line: str) -> str:
    """Returns the time at the start of a log line, in UTC so that times compare as text; empty if there is none."""
    try:
        return datetime.fromisoformat(line.partition(" ")[0]).astimezone(UTC).isoformat(timespec="milliseconds")
    except ValueError:
        return ""


def put_aside(log: Path) -> Path:
    """Returns where the older part of a log is, if it has grown too long."""
    return log.with_name(f"{log.name}.1")


def last_lines(log: Path, count: int = LOG_LINES_MAX) -> list[str]:
    """Returns the last lines of a log as text; more if they start inside a traceback, so that it is whole."""
    lines = [part for line in _last(log) for part in as_text(line)]
    start = max(len(lines) - count, 0)
    tracebacks = [index for index, line in enumerate(lines) if line.startswith(TRACEBACK)]
    if tracebacks and tracebacks[-1] < start and len(lines) - tracebacks[-1] < 10 * count:
        start = tracebacks[-1]
    return lines[start:]


def _last(log: Path) -> Sequence[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(stream.tell() - LOG_BYTES_MAX, 0))
            return stream.read().decode(errors="replace").splitlines()
    except OSError:
        return []

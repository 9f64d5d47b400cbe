"""How a process logs: lines of text or of JSON, floods counted, files that rotate, and a bound on a run's own logs."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from adamctl.config.names import in_short, printable
from adamctl.errors import ConfigurationError
from adamctl.net.sources import ELSEWHERE, LineQuota

FORMATS: Final = ("text", "json")
FORMAT_VARIABLE: Final = "ADAMCTL_LOG_FORMAT"
OWN_LOG_VARIABLE: Final = "ADAMCTL_OWN_LOG"
"""Names the file that stderr of a run's role goes to, which the role then keeps within OWN_LOG_BYTES_MAX."""
OWN_LOG_BYTES_MAX: Final = 64 << 20
LINES_MAX, WINDOW_S = 50, 10.0
"""Lines of one kind in so many seconds; more are counted."""
KIND_CHARACTERS_MAX: Final = 200
LINE_CHARACTERS_MAX: Final = 16_384
"""Longest message: a peer must not fill the disk with one."""


def now_text(unix_s: float | None = None) -> str:
    """Returns a time as logs show it, such as `2026-05-01T12:00:00.123+02:00`."""
    at = datetime.now() if unix_s is None else datetime.fromtimestamp(unix_s)
    return at.astimezone().isoformat(timespec="milliseconds")


def json_line(
    level: str, role: str, node: str, message: str, *, at: str = "", logger: str = "", exception: str = ""
) -> str:
    """Returns a log line as one JSON object without a line end. All that is not ASCII, or controls, is escaped."""
    values = {"time": at or now_text(), "level": level, "role": role, "node": node}
    values |= ({"logger": logger} if logger else {}) | {"message": message}
    return json.dumps(values | ({"exception": exception} if exception else {}))


class TextFormatter(logging.Formatter):
    """`2026-05-01T12:00:00.123+02:00 INFO ps ps-3f2a message`.

    A message is always one line; no line of a traceback looks like the first line of another message.
    """

    def __init__(self, role: str, node: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {role} {node.replace('%', '%%')} %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return in_short(super().formatMessage(record), LINE_CHARACTERS_MAX)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        lines = printable(super().formatException(ei), keep="\n").split("\n")
        return "\n".join(f"  {line}" if line[:1].isdecimal() else line for line in lines)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return now_text(record.created)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `role`, `node`, `logger`, `message`, and `exception` if there is one."""

    def __init__(self, role: str, node: str) -> None:
        super().__init__()
        self._role, self._node = role, node

    def format(self, record: logging.LogRecord) -> str:
        exception = self.formatException(record.exc_info) if record.exc_info else ""
        return json_line(
            record.levelname, self._role, self._node, record.getMessage()[:LINE_CHARACTERS_MAX],
            at=now_text(record.created), logger=record.name, exception=exception,
        )  # fmt: skip


def formatter(kind: str, role: str, node: str) -> logging.Formatter:
    """Returns the formatter of `--log-format`. Raises ConfigurationError: there is no such format."""
    if kind not in FORMATS:
        raise ConfigurationError(f"--log-format: expected {' or '.join(FORMATS)}; found {kind!a}")
    return JsonFormatter(role, node) if kind == "json" else TextFormatter(role, node)


class Outlet(logging.Handler):
    """Passes records on to others, and counts those of a flood: LINES_MAX of one kind in WINDOW_S are written.

    A kind is a logger, a level and a text before its values are filled in. What is for debugging is never counted.
    """

    def __init__(self, handlers: Sequence[logging.Handler], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handlers, self._clock = handlers, clock
        self._quota = LineQuota(LINES_MAX, WINDOW_S)
        self._levels: dict[str, tuple[str, int]] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held."""
        now = self._clock()
        self._sum_up(now)
        if record.levelno > logging.DEBUG:
            kind = f"{record.name} {record.levelno} {record.msg}"[:KIND_CHARACTERS_MAX]
            if not self._quota.take(kind, now):
                self._levels[kind] = (record.name, record.levelno)
                self._sum_up_later()
                return
        self._pass_on(record)

    def _pass_on(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            handler.handle(record)

    def _sum_up(self, now: float) -> None:
        for kind, lines in self._quota.sums(now):
            name, level = self._levels.pop(kind, ("adamctl", logging.WARNING))
            shown = "lines of other kinds" if kind == ELSEWHERE else f"like: {kind.split(' ', 2)[-1]}"
            text = f"and {lines} more in {WINDOW_S:g} s {shown}"
            self._pass_on(logging.LogRecord(name, level, "", 0, "%s", (text,), None))

    def _sum_up_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(WINDOW_S, self._ring)
            self._timer.daemon = True
            self._timer.start()

    def _ring(self) -> None:
        self.acquire()
        try:
            self._timer = None
            self._sum_up(self._clock())
        finally:
            self.release()

    def close(self) -> None:
        """Writes what is counted, and closes the others."""
        self.acquire()
        try:
            timer, self._timer = self._timer, None
            self._sum_up(float("inf"))
        finally:
            self.release()
        if timer is not None:
            timer.cancel()
            timer.join(1.0)
        for handler in self._handlers:
            handler.close()
        super().close()


class OwnLog(logging.StreamHandler[Any]):
    """Writes to a stream that is a file of the run, opened for appending, and keeps that within a bound.

    When it is longer than `bytes_max`, it is copied to `<file>.1`, over the one before, and begins anew.
    """

    def __init__(self, path: Path, stream: Any = None, bytes_max: int = OWN_LOG_BYTES_MAX) -> None:
        super().__init__(sys.stderr if stream is None else stream)
        self._path, self._bytes_max = path, bytes_max
        self._unseen_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self._unseen_bytes += len(record.msg) + 100 if isinstance(record.msg, str) else 100
        if self._unseen_bytes * 64 >= self._bytes_max:
            self._unseen_bytes = 0
            with suppress(OSError, ValueError):  # a full disk keeps it short enough
                self._look()

    def _look(self) -> None:
        descriptor = self.stream.fileno()
        ours, named = os.fstat(descriptor), self._path.stat()
        if (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino) or not stat.S_ISREG(ours.st_mode):
            return  # stderr goes elsewhere
        if ours.st_size > self._bytes_max:
            shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
            os.ftruncate(descriptor, 0)


def stderr_handler() -> logging.Handler:
    """Returns the handler of stderr, which knows whether it is a file of a run."""
    own = os.environ.get(OWN_LOG_VARIABLE, "")
    return OwnLog(Path(own)) if own else logging.StreamHandler(sys.stderr)


def file_handler(path: Path) -> logging.Handler:
    """Returns a handler that follows a rotated file: when another file has its name, that one is written.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return logging.handlers.WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        text = f"--log-file {path}: {error.strerror}; choose another place"
        raise ConfigurationError(text) from error

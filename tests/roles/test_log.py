"""A record of the log is one line, and a line of the log is one of ours."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError, RemoteError
from adamctl.roles.log import LINES_MAX, WINDOW_S, Outlet, OwnLog, formatter
from adamctl.roles.process import CommonOptions, logging_to

FORGED = "2026-05-01T12:00:00.123+02:00 INFO ps ps-1 all is well"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ [A-Z]+ ps ps-0 ")


def logged(tmp_path: Path, *records: tuple[str, Exception | None], log_format: str = "text") -> list[str]:
    file = tmp_path / "ps.log"
    with logging_to("ps", "ps-0", CommonOptions(log_file=file, log_format=log_format)):
        for text, error in records:
            logging.getLogger("adamctl.ps").error("%s", text, exc_info=error)
    return file.read_text().split("\n")[:-1]


def test_a_message_is_one_line_without_control_characters(tmp_path: Path) -> None:
    lines = logged(tmp_path, (f"from \x1b[2J\r\n{FORGED}", None), ("next", None))
    assert len(lines) == 2
    assert all(LINE.match(line) for line in lines)
    assert lines[0].endswith(f"from \\x1b[2J\\r\\n{FORGED}")


def test_a_traceback_forges_no_message(tmp_path: Path) -> None:
    lines = logged(tmp_path, ("failed", ValueError(f"\x1b]0;owned\x07\n{FORGED}\u2028{FORGED}")))
    assert len([line for line in lines if re.match(r"\d", line)]) == 1
    assert f"  {FORGED}\\u2028{FORGED}" in lines
    assert "ValueError: \\x1b]0;owned\\x07" in lines


def test_a_line_is_cut_that_would_fill_the_disk(tmp_path: Path) -> None:
    (line,) = logged(tmp_path, ("\x1b" * 1_000_000, None))
    assert len(line) < 20_000 and line.endswith("characters)") and "(cut; 10000" in line


def test_what_the_loop_and_threads_tell_is_logged_like_all_else(tmp_path: Path) -> None:
    """Of a task or a thread that nobody waits for, with the text of a peer in its error."""
    file = tmp_path / "ps.log"
    hook, hostile = threading.excepthook, RemoteError(1, f"\x1b[2J\n{FORGED}")

    def fails() -> None:
        raise hostile

    with logging_to("ps", "ps-0", CommonOptions(log_file=file)):
        logging.getLogger("asyncio").error("a task failed: %s", "\x1b]0;owned\x07", exc_info=hostile)
        thread = threading.Thread(target=fails, name="t")
        thread.start()
        thread.join()
    assert threading.excepthook is hook and not logging.getLogger("asyncio").handlers
    lines = file.read_text().split("\n")[:-1]
    assert [LINE.sub("", line) for line in lines if LINE.match(line)] == [
        "a task failed: \\x1b]0;owned\\x07", "thread t failed",
    ]  # fmt: skip
    assert all(line.isprintable() for line in lines) and sum(line == f"  {FORGED}" for line in lines) == 2


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_is_one_object_a_line_and_all_is_escaped(tmp_path: Path) -> None:
    hostile = f"from \x1b[2J\r\n{FORGED}\u202e\u2028"
    lines = logged(tmp_path, (hostile, None), ("next", ValueError("\x1b]0;owned")), log_format="json")
    assert len(lines) == 2 and all(line.isascii() and line.isprintable() for line in lines)
    first, second = map(json.loads, lines)
    assert first["message"] == hostile
    assert (first["level"], first["role"], first["node"], first["logger"]) == ("ERROR", "ps", "ps-0", "adamctl.ps")
    assert "exception" not in first and second["exception"].endswith("ValueError: \x1b]0;owned")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--log-format: expected text or json; found 'xml'"):
        formatter("xml", "ps", "ps-0")


# --- floods -----------------------------------------------------------------------------------------------------------


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def record(text: str, *values: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("adamctl.ps", level, "", 0, text, values, None)


def test_a_flood_of_one_message_is_counted_and_others_get_through() -> None:
    kept, now = Kept(), [100.0]
    outlet = Outlet([kept], lambda: now[0])
    for number in range(LINES_MAX + 7):
        outlet.handle(record("refused by %s", number))
    outlet.handle(record("something else"))
    assert kept.lines[-2:] == [f"refused by {LINES_MAX - 1}", "something else"] and len(kept.lines) == LINES_MAX + 1
    now[0] += WINDOW_S
    outlet.handle(record("refused by %s", "again"))
    assert kept.lines[-2:] == [f"and 7 more in {WINDOW_S:g} s like: refused by %s", "refused by again"]
    outlet.close()


def test_what_is_counted_is_told_at_the_end() -> None:
    kept = Kept()
    outlet = Outlet([kept], lambda: 0.0)
    for _ in range(LINES_MAX + 3):
        outlet.handle(record("again"))
    outlet.close()
    assert kept.lines[-1] == f"and 3 more in {WINDOW_S:g} s like: again"
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_what_is_for_debugging_is_never_counted() -> None:
    kept = Kept()
    outlet = Outlet([kept], lambda: 0.0)
    for _ in range(3 * LINES_MAX):
        outlet.handle(record("step", level=logging.DEBUG))
    outlet.close()
    assert len(kept.lines) == 3 * LINES_MAX


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_rotated_file_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "ps.log"
    with logging_to("ps", "ps-0", CommonOptions(log_file=file)):
        log = logging.getLogger("adamctl.ps")
        log.info("before")
        file.rename(tmp_path / "ps.log.1")
        log.info("after")
    assert "before" in (tmp_path / "ps.log.1").read_text()
    assert "after" in file.read_text() and "before" not in file.read_text()


def test_a_runs_own_log_stays_within_its_bound(tmp_path: Path) -> None:
    file, bytes_max = tmp_path / "ps.log", 20_000
    with file.open("ab") as opened, open(os.dup(opened.fileno()), "a", buffering=1) as stream:
        handler = OwnLog(file, stream, bytes_max)
        for number in range(2000):
            handler.emit(record(f"line {number} {'x' * 40}"))
    older, newer = (tmp_path / "ps.log.1").read_text(), file.read_text()
    assert max(len(older), len(newer)) < bytes_max * 1.2
    assert f"{older}{newer}".endswith(f"line 1999 {'x' * 40}\n")
    numbers = [int(line.split()[1]) for line in f"{older}{newer}".splitlines()]
    assert numbers == list(range(numbers[0], 2000)), "no line is lost or cut where it begins anew"


def test_a_file_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "named.log").write_text("of a run")
    other = tmp_path / "other.log"
    with other.open("a", buffering=1) as stream:
        handler = OwnLog(tmp_path / "named.log", stream, 1000)
        for _ in range(100):
            handler.emit(record("x" * 100))
    assert len(other.read_text()) > 10_000 and not (tmp_path / "named.log.1").exists()

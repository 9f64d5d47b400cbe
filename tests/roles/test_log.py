"""A record of the log is one line, and a line of the log is one of ours."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

from adamctl.errors import RemoteError
from adamctl.roles.process import CommonOptions, logging_to

FORGED = "2026-05-01T12:00:00.123+02:00 INFO ps ps-1 all is well"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ [A-Z]+ ps ps-0 ")


def logged(tmp_path: Path, *records: tuple[str, Exception | None]) -> list[str]:
    file = tmp_path / "ps.log"
    with logging_to("ps", "ps-0", CommonOptions(log_file=file)):
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

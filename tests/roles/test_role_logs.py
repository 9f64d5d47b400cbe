"""Logs read back: lines of JSON as lines of text, times that compare, the end with its traceback whole."""

from __future__ import annotations

from pathlib import Path

from adamctl.roles.log import json_line
from adamctl.roles.role_logs import as_text, last_lines, put_aside, when

AT = "2026-05-01T12:00:00.123+02:00"


def test_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "ps-1.log"
    log.write_text("".join(f"line {number}\n" for number in range(50)))
    assert last_lines(log, 3) == ["line 47", "line 48", "line 49"]


def test_a_traceback_is_shown_whole(tmp_path: Path) -> None:
    log = tmp_path / "ps-1.log"
    frames = "".join(f"  frame {number}\n" for number in range(30))
    log.write_text("before\n" * 9 + "Traceback (most recent call last):\n" + frames + "ValueError: x\n")
    lines = last_lines(log, 5)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: x"


def test_a_line_of_json_is_shown_as_text() -> None:
    assert as_text(json_line("INFO", "ps", "ps-1", "a\nb\x1b", at=AT)) == [f"{AT} INFO ps ps-1 a\\nb\\x1b"]
    failed = json_line("ERROR", "ps", "ps-1", "failed", at=AT, exception="Traceback\n\x1bValueError: x")
    assert as_text(failed) == [f"{AT} ERROR ps ps-1 failed", "Traceback", "\\x1bValueError: x"]


def test_what_is_no_line_of_a_log_stays_as_it_is() -> None:
    for line in ("", "text", "{", "{}", '{"time": 1, "level": "x", "role": "", "node": "", "message": ""}', "[1]"):
        assert as_text(line) == [line]


def test_times_compare_as_text() -> None:
    assert when(f"{AT} INFO") == "2026-05-01T10:00:00.123+00:00"
    assert when("Traceback") == when("") == ""


def test_the_older_part_of_a_log_lies_beside_it() -> None:
    assert put_aside(Path("logs/ps-1.log")) == Path("logs/ps-1.log.1")

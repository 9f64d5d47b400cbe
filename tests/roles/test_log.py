"""A record of the log is one line, and a line of the log is one of ours."""

from __future__ import annotations

import logging
import re
from pathlib import Path

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

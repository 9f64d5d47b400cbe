"""The live view in a real terminal: under a shell with job control, stopped, continued and resized."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator

import pytest

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash for job control")
WAIT_S = 60.0
PROGRAM = """
import sys, time
from adamctl.live.display import RichReporter
from adamctl.roles.coordinator.core.progress import RoleRow, RunProgress
reporter = RichReporter(sys.stderr)
roles = tuple(RoleRow(role="worker", node=f"worker-{n}", state="training") for n in range(30))
try:
    for n in range(2000):
        reporter.show(RunProgress(state="training", job=f"number{n}end", passes_total=3, roles=roles), {})
        time.sleep(0.05)
finally:
    reporter.close()
"""


class Terminal:
    """A shell in a terminal of 80 x 24."""

    def __init__(self) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            assert BASH is not None
            os.environ.update(PS1="ready$ ", TERM="xterm", COLUMNS="", LINES="")
            del os.environ["COLUMNS"], os.environ["LINES"]
            os.execv(BASH, [BASH, "--norc", "--noprofile", "-i"])
        self.resize(24, 80)
        self.text = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        self.text = ""
        os.write(self.fd, text.encode())

    def wait_for(self, text: str) -> str:
        """Returns all that has been written since the last `type`, up to this text."""
        until_s = time.monotonic() + WAIT_S
        while text not in self.text:
            assert time.monotonic() < until_s, f"expected {text!r}; found {self.text!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        return self.text

    def close(self) -> None:
        os.kill(self.pid, signal.SIGHUP)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(tmp_path: object) -> Iterator[Terminal]:
    program = tmp_path / "program.py"  # type: ignore[operator]
    program.write_text(PROGRAM)
    made = Terminal()
    made.wait_for("ready$ ")
    made.type(f"{sys.executable} {program}\n")
    made.wait_for("number5end")
    try:
        yield made
    finally:
        made.close()


def test_ctrl_z_gives_the_cursor_back_and_fg_takes_it_again(terminal: Terminal) -> None:
    terminal.type("\x1a")
    stopped = terminal.wait_for("ready$ ")
    assert "\x1b[?25h" in stopped.rpartition("end")[2], "the cursor is shown before the shell's prompt"
    terminal.type("fg\n")
    terminal.wait_for("\x1b[?25l")
    terminal.type("")
    terminal.wait_for("number")
    terminal.type("\x1a")
    assert "\x1b[?25h" in terminal.wait_for("ready$ ")
    terminal.type("fg\n")
    terminal.wait_for("\x1b[?25l")
    terminal.type("\x03")
    assert "\x1b[?25h" in terminal.wait_for("ready$ ")


def test_each_picture_is_drawn_at_once_and_fits(terminal: Terminal) -> None:
    terminal.type("")
    text = terminal.wait_for("number14end")
    pictures = text.split("\x1b[?2026h")[1:-1]
    assert pictures and all(picture.count("\x1b[?2026l") == 1 for picture in pictures)
    assert all("30 x worker" in picture and picture.count("\n") <= 23 for picture in pictures)


def test_after_a_change_of_size_the_picture_begins_anew(terminal: Terminal) -> None:
    terminal.type("")
    terminal.resize(50, 100)
    text = terminal.wait_for("\x1b[H\x1b[J")
    terminal.type("")
    assert "worker-29" in terminal.wait_for("worker-29") and text

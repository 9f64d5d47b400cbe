"""Commands that are started without stdin, stdout or stderr, as by some service managers and with `>&-`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = "import os, sys; os.write(3, f'{None in (sys.stdin, sys.stdout, sys.stderr)} '.encode())"
LOOK = f"""
import os, subprocess, sys
from adamctl.__main__ import open_closed_streams
open_closed_streams()
subprocess.run([sys.executable, "-c", {CHILD!r}], pass_fds=[3], check=True)
os.write(3, repr([sys.stdin.read(), sys.stdout.isatty(), sys.stderr.isatty(), os.dup(0)]).encode())
"""


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", line, "sh", sys.executable, *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_that_has_done_its_work_succeeds_without_them(closed: str) -> None:
    done = shell(f'exec "$@" {closed}', "-m", "adamctl", "version")
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_streams_are_there_for_this_process_and_its_children(tmp_path: Path) -> None:
    told = tmp_path / "told"
    done = shell(f'exec "$@" <&- >&- 2>&- 3>"{told}"', "-c", LOOK)
    assert done.returncode == 0
    assert told.read_text() == "False ['', False, False, 4]"

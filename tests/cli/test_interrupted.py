"""A command that is interrupted ends soon, with the code of its signal, and takes along all it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from adamctl.bench import namespaces

DIGITS = Path(__file__).parents[2] / "examples" / "digits.toml"
WAIT_S = 60.0
UNTIL_STARTED = {
    "bench failover --fault kill --lease 2": "**/ps-1.log",
    "bench failover --fault cut --lease 2": "**/ps-1.log",
    "bench replication": "**/ps-1.log",
    "bench ps-throughput": "**/ps-1.log",
    f"train {DIGITS} --plain": "**/logs/worker-1.log",
}
"""Commands, and a file that tells that they have started processes."""


def started_with(mark: str) -> list[str]:
    """Returns the processes that have this in their environment, however they came about."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("INTERRUPTED_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def wait_until(true: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("line", UNTIL_STARTED)
def test_nothing_is_left_behind(line: str, number: signal.Signals, tmp_path: Path) -> None:
    if "cut" in line and namespaces.missing():
        pytest.skip(namespaces.missing())
    mark = uuid4().hex
    short = tmp_path / "t"  # Unix sockets lie in it
    short.mkdir()
    environment = {**os.environ, "INTERRUPTED_TEST": mark, "TMPDIR": str(short)}
    process = subprocess.Popen(
        [sys.executable, "-m", "adamctl", *line.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        pattern = UNTIL_STARTED[line]
        wait_until(lambda: process.poll() is not None or list(tmp_path.glob(pattern)), "it starts processes")
        assert process.poll() is None
        os.killpg(process.pid, number)  # as a terminal does
        _, told = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number, told
    assert "Traceback" not in told
    wait_until(lambda: not started_with(mark), "all its processes end")
    assert list(short.iterdir()) == []

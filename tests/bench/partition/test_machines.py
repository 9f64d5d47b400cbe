"""Processes that are stopped at random, and run again in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from adamctl.bench.partition.machines import Pauses, paused
from adamctl.errors import ConfigurationError

DEADLINE_S = 30.0


def test_pauses_take_their_share_of_the_time() -> None:
    """Of two processes each stands still for a fifth of the time, so one or the other does for two fifths."""
    pauses, random = Pauses(0.2, 0.05), Random(7)
    drawn = [pauses.draw(random, 2) for _ in range(2000)]
    still_s = [still for _, still in drawn]
    assert sum(still_s) / sum(map(sum, drawn)) == pytest.approx(0.4, rel=0.05)
    assert min(still_s) >= 0.025 and max(still_s) <= 0.075


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_stopped_and_runs_again() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = Path(f"/proc/{child.pid}/stat")

    def state() -> str:
        return status.read_text().rpartition(")")[2].split()[0]

    try:
        with paused([child.pid], Pauses(0.9, 10.0), 1):  # runs for about a second, then stands still for about ten
            _until(lambda: state() == "T")
        _until(lambda: state() != "T")
        child.communicate(b"\n", timeout=DEADLINE_S)
        assert child.returncode == 0
    finally:
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()


def test_more_than_all_of_the_time_is_refused() -> None:
    Pauses(0.45, 1.0).check(2)
    with pytest.raises(ConfigurationError, match=r"--pauses: expected at most 0\.23 with 4 partitions.*; found 0\.5"):
        Pauses(0.5, 1.0).check(4)


def _until(holds: object) -> None:
    assert callable(holds)
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)

"""Processes that are stopped at random, and run again in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from adamctl.bench.control_groups import PERIOD_US
from adamctl.bench.partition.machines import Machines, Pauses, paused
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


class Metered:
    """A process with a share of a core: it runs until that is used up in a period, and stands still until the next."""

    def __init__(self, share: float, first_s: float) -> None:
        """`first_s`: when one of its periods begins."""
        self._share, self._first_s, self._period, self._left_s = share, first_s, -1, 0.0

    def ends_s(self, now_s: float, work_s: float) -> float:
        """Returns when so much processor time is used that is wanted from now on."""
        period_s = PERIOD_US * 1e-6
        period = int((now_s - self._first_s) / period_s)
        if period > self._period:
            self._period, self._left_s = period, self._share * period_s
        while work_s > self._left_s:
            work_s -= self._left_s
            self._period, self._left_s = self._period + 1, self._share * period_s
            now_s = self._first_s + self._period * period_s
        self._left_s -= work_s
        return now_s + work_s


@pytest.mark.parametrize("step_s", [1e-4, 1e-3, 4e-3])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.8])
def test_blocks_wait_no_longer_than_processes_stand_still(step_s: float, share: float) -> None:
    """Two processes compute, and give each other a block after every step: one that waits uses up nothing."""
    machines, random, steps = Machines(quota_cores=share), Random(3), int(1 / step_s)
    taken_s = 0.0
    for _ in range(20):
        both = [Metered(share, -random.random() * PERIOD_US * 1e-6) for _ in range(2)]
        now_s = 0.0
        for _ in range(steps):
            now_s = max(one.ends_s(now_s, step_s * random.uniform(0.7, 1.3)) for one in both)
        taken_s += now_s / 20 / steps
    slowed_s = step_s / share
    assert 0.95 * slowed_s < taken_s < slowed_s + machines.idle_s(slowed_s) < 1.7 * taken_s
    assert machines.idle_s() == machines.idle_s(1.0) >= machines.idle_s(slowed_s)


def test_whole_cores_do_not_stand_still() -> None:
    assert Machines().idle_s() == Machines(quota_cores=2).idle_s() == 0


def _until(holds: object) -> None:
    assert callable(holds)
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)

"""Disturbed runs are compared with undisturbed ones: here with runs that take given times, and a few real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from adamctl.bench.control_groups import control_groups
from adamctl.bench.sandblaster import disturbed
from adamctl.bench.sandblaster.disturbed import DisturbedRuns, disturbed_iteration, ideal_s, stop_in_the_middle
from adamctl.bench.sandblaster.experiments import Workload
from adamctl.bench.sandblaster.whole_runs import Iteration, Trained
from adamctl.errors import RunFailedError
from tests.bench.sandblaster.test_whole_runs import LITTLE

COUNTS = {"bundles_total": 40, "backups": 3, "backups_won": 1}


def run_of(*seconds: float) -> Trained:
    """Iterations of so many seconds each, of one evaluation; the first commit is at Unix time 0."""
    times = [sum(seconds[:count]) for count in range(len(seconds) + 1)]
    iterations = [Iteration(at_s, at_s, number + 1, 1.0) for number, at_s in enumerate(times)]
    return Trained({"batch": COUNTS}, iterations)


class Runs:
    """Runs that take given times. `settings`: of those that were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *runs: Trained) -> None:
        self._left: Iterator[Trained] = iter(runs)
        self.settings: list[dict[str, Any]] = []
        monkeypatch.setattr(disturbed, "train", self.train)

    def train(
        self, workload: object, passes: int, settings: Mapping[str, Any], data: Sequence[str], disturb: Any,
        groups: object,
    ) -> Trained:  # fmt: skip
        self.settings.append(dict(settings))
        if disturb is not None and settings.get("cluster.workers") == 2:
            stopped_at = [cell.cell_contents for cell in disturb.__closure__ if isinstance(cell.cell_contents, list)]
            for found in stopped_at:
                found.append(7.5)  # in the eighth iteration, if each takes a second
        return next(self._left)


class Watched:
    """A run that is at the next place, (evaluations, bundles), each time it is looked at. Its process is another."""

    def __init__(self, places: Iterator[tuple[int, int]], pid: int) -> None:
        self._places, self._pid = places, pid

    @property
    def progress(self) -> Any:
        evaluations, bundles = next(self._places)
        batch = SimpleNamespace(evaluations=evaluations, bundles=bundles, bundles_total=40, stop_reason="")
        return SimpleNamespace(batch=batch)

    def process(self, node: str) -> Any:
        return SimpleNamespace(pid=self._pid)


@pytest.fixture
def runs() -> DisturbedRuns:
    groups: Any = object()
    return DisturbedRuns(LITTLE, 12, 1000, (), lambda line: None, groups)


def test_a_slow_worker_is_compared_with_the_sum_of_both_speeds(
    runs: DisturbedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speeds of 1 and 1/3: 3/4 of a second would be ideal."""
    made = Runs(monkeypatch, run_of(*[1.0] * 6), run_of(*[3.0] * 6), run_of(9.0, 9.0, 9.0, 0.75, 1.5, 1.5))
    found = runs.measure_slow(1)
    assert found["ratio"] == pytest.approx(2.0), "the first evaluations do not count"
    assert found["speed_of_the_slow_one"] == pytest.approx(1 / 3)
    assert (found["bundles"], found["backups"], found["backups_won"]) == (40, 3, 1)
    assert [one["cluster.workers"] for one in made.settings] == [1, 1, 2]
    assert {one["optimizer.batch"] for one in made.settings} == {1000}


def test_a_stopped_worker_delays_its_batch_or_those_after_it(
    runs: DisturbedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [1.0] * 7
    Runs(
        monkeypatch, run_of(*[2.0] * 9), run_of(*both, 3.0, 2.4, 2.4), run_of(*[4.0] * 9), run_of(*both, 2.0, 5.0, 5.0)
    )
    found = runs.measure_stopped(2)
    assert (found["batch_s"], found["after_s"], found["alone_s"]) == (2.0, pytest.approx(2.4), 2.0)
    assert found["ratio"] == pytest.approx(1.2), "of the best rounds, the slower of both"


def test_copies_are_compared_in_turn(runs: DisturbedRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Runs(monkeypatch, run_of(*[1.0] * 6), run_of(*[1.1] * 6), run_of(*[2.0] * 6), run_of(*[0.9] * 6))
    found = runs.measure_copies(2)
    assert found["ratio"] == pytest.approx(0.9), "of the best rounds"
    assert [one["cluster.replication"] for one in made.settings] == [1, 3, 1, 3]


def test_without_control_groups_it_is_said() -> None:
    runs = DisturbedRuns(LITTLE, 12, 1000, (), lambda line: None, None)
    assert runs.measure_slow(1) == runs.measure_stopped(1) == disturbed.CANNOT


def test_speeds_add_up() -> None:
    assert ideal_s(2.0, 2.0) == 1.0 and ideal_s(1.0, 4.0) == pytest.approx(0.8)


def test_the_disturbed_iteration_is_the_one_under_way() -> None:
    iterations = run_of(1.0, 1.0, 1.0).iterations
    assert disturbed_iteration(iterations, 0.5) == 0 and disturbed_iteration(iterations, 1.5) == 1
    with pytest.raises(RunFailedError, match="iterations after the one"):
        disturbed_iteration(iterations, 2.5)


def test_a_worker_is_stopped_in_the_middle_of_a_later_batch() -> None:
    """Never at its end, and not before its speed is known."""
    places = iter([(1, 20), (2, 20), (4, 2), (4, 39), (5, 20), (5, 21)])
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stopped_at: list[float] = []
        asyncio.run(stop_in_the_middle(Watched(places, child.pid), "worker-2", stopped_at))  # type: ignore[arg-type]
        assert len(stopped_at) == 1 and next(places) == (5, 21)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status) and psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.communicate(b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["slow", "stopped", "copies"])
def test_real_runs_are_disturbed(what: str) -> None:
    long_enough = Workload("digits", hidden=(300,), batch=4)
    with control_groups("cpu") as groups:
        found = getattr(DisturbedRuns(long_enough, 40, 1437, (), print, groups), f"measure_{what}")(1)
    if "cannot" in found:
        pytest.skip(found["cannot"])
    assert found["ratio"] > 0

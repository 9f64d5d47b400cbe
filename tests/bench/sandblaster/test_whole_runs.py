"""Whole runs of L-BFGS are read as they were: when each point was accepted, and where the time went."""

from __future__ import annotations

import pytest

from adamctl.bench.sandblaster.experiments import Workload
from adamctl.bench.sandblaster.whole_runs import Iteration, Trained, train
from adamctl.bench.watched_run import WatchedRun
from adamctl.errors import RunFailedError

LITTLE = Workload("digits", hidden=(8,), batch=32)


def trained(*times: tuple[float, int]) -> Trained:
    """A run with commits at (seconds of training, evaluations)."""
    iterations = [Iteration(100 + seconds, seconds, count, 1.0) for seconds, count in times]
    return Trained({"batch": {"command_seconds": 1.0, "evaluation_seconds": 3.0}}, iterations)


def test_a_whole_run_is_disturbed_while_it_trains_and_read_when_it_has_ended() -> None:
    pids = []

    async def look(run: WatchedRun) -> None:
        pids.append(run.process("worker-1").pid)
        with pytest.raises(RunFailedError, match="expected a process of worker-2"):
            run.process("worker-2")

    found = train(LITTLE, 6, {"cluster.threads": 1}, disturb=look)
    assert len(pids) == 1
    first, last = found.iterations[0], found.iterations[-1]
    assert first.evaluations == 1 and first.loss > last.loss > 0
    assert last.evaluations == 6 == found.result["batch"]["evaluations"]
    assert last.loss == found.result["batch"]["loss"]
    assert 0 < first.seconds < last.seconds and first.at_s < last.at_s
    assert 0 < found.command_share < 1 and found.evaluation_s(1) > 0


def test_a_time_is_the_median_of_the_iterations_that_are_asked_for() -> None:
    found = trained((5.0, 1), (15.0, 2), (17.0, 4), (20.0, 5), (22.0, 6))
    assert found.evaluation_s(0) == 2.5, "of 10, 1, 3 and 2 seconds"
    assert found.evaluation_s(1) == 2.0 and found.evaluation_s(1, 2) == 1.0
    assert found.command_share == 0.25
    with pytest.raises(RunFailedError, match="expected more than 5 iterations; found 5"):
        found.evaluation_s(4)

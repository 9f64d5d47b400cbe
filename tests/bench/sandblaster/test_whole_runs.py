"""Whole runs of L-BFGS are read as they were: when each point was accepted, and where the time went."""

from __future__ import annotations

import pytest

from adamctl.bench.sandblaster import whole_runs
from adamctl.bench.sandblaster.experiments import Workload
from adamctl.bench.sandblaster.whole_runs import Iteration, Trained, measure_images, train
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


def test_whole_runs_of_both_are_compared_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations of 1,437 images in 2 seconds, after one that reads them; Downpour at 359.25 and 1,437 images/s."""
    rates = iter([359.25, 1437.0, 359.25])
    asked = []

    def run(
        workload: object, passes: int, settings: object, data: object, groups: object, optimizer: object = None
    ) -> Trained:
        asked.append(passes)
        if optimizer is None:
            return trained((9.0, 1), (18.0, 2), (20.0, 3), (24.0, 5))
        return Trained({"images_per_s": next(rates)}, [])

    monkeypatch.setattr(whole_runs, "train", run)
    found = measure_images(LITTLE, 8, 3, ())
    assert found["whole_run_ratio"] == 2.0
    assert found["whole_run_evaluation_images_per_s"] == 718.5 == 2 * found["whole_run_downpour_images_per_s"]
    assert asked == [8, 4] * 3

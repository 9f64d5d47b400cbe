"""Who is first at a loss: ours from its records, others from what their program says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from adamctl.bench.sandblaster import time_to_loss
from adamctl.bench.sandblaster.time_to_loss import (
    OURS,
    SCIPY,
    TORCH,
    Descent,
    ProcessorTime,
    measure_time_to_loss,
    race_of,
)
from adamctl.bench.sandblaster.whole_runs import Iteration, Trained
from adamctl.errors import RunFailedError
from tests.bench.peers_for_tests import interpreter
from tests.bench.sandblaster.test_whole_runs import LITTLE

PEER = """
import json, sys
if len(sys.argv) == 1:
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "load":
            import numpy
            images, arrays = numpy.load(request["images"]), numpy.load(request["weights"])
            assert images.shape == (1437, 64) and images.max() == request["value_max"] == 16
            assert [arrays[name].shape for name in arrays.files] == [(8, 64), (8,), (10, 8), (10,)]
            answer = {"ok": True, "torch_version": "0.0", "chunk": 1437}
        elif request["with"] == "torch":
            answer = {"losses": [2.0, 3.0, 1.0, 0.5], "seconds": [1.0, 2.0, 4.0, 6.0], "processor_s": 8.0}
        else:
            answer = {"ok": False, "error": "no SciPy"}
        print(json.dumps(answer), flush=True)
"""


def ours(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    """Runs take these seconds to a loss of 1."""
    left = iter(times)

    def train(*arguments: object, groups: object) -> Trained:
        iterations = [Iteration(0.0, 0.5, 1, 2.0), Iteration(1.0, next(left), 3, 1.0)]
        return Trained({"batch": {"command_seconds": 1.0, "evaluation_seconds": 9.0}}, iterations)

    monkeypatch.setattr(time_to_loss, "train", train)


def test_the_loss_is_the_lowest_that_all_have_reached_and_the_fastest_peer_counts() -> None:
    sides = {
        OURS: [Descent([2.0, 1.5, 0.9], [1.0, 2.0, 3.0])],
        TORCH: [Descent([2.0, 1.0, 0.2], [1.0, 4.0, 6.0])],
        SCIPY: [Descent([2.0001, 0.95, 1.1], [1.0, 6.0, 9.0])],
    }
    race = race_of(sides)
    assert race.loss == 0.95
    assert race.seconds == {OURS: 3.0, TORCH: 6.0, SCIPY: 6.0} and race.ratio == 0.5
    assert Descent([2.0], [1.0]).seconds_to(1.0) == float("inf")


def test_sides_that_do_not_begin_at_one_loss_are_not_compared() -> None:
    with pytest.raises(RunFailedError, match=r"expected torch to begin at a loss of 2; found 2\.1"):
        race_of({OURS: [Descent([2.0], [1.0])], TORCH: [Descent([2.1], [1.0])]})


def test_rounds_are_run_in_turn_and_the_best_of_each_side_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours(monkeypatch, 20.0, 1.0, 40.0)
    found = measure_time_to_loss(LITTLE, 4, 3, (), interpreter(tmp_path, PEER))
    race = found["time-to-loss"]
    assert (race["ratio"], race["loss"], race["adamctl_s"], race["torch_s"]) == (0.25, 1.0, 1.0, 4.0)
    assert race["scipy"] == "no SciPy" and "scipy_s" not in race
    assert race["torch_processor_s_per_evaluation"] == 2.0
    assert found["command-share"]["ratio"] == 0.1


async def test_processor_time_is_that_of_the_evaluations_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_loss, "LOOK_S", 0.0)
    times = iter([(1, ""), (3, ""), (6, ""), (7, "budget")])

    class Run:
        """The processor time at evaluation n is 10 n seconds, and 2 more."""

        @property
        def progress(self) -> SimpleNamespace:
            return SimpleNamespace(batch=SimpleNamespace(evaluations=self.now[0], stop_reason=self.now[1]))

        def cpu_s(self) -> float:
            count = self.now[0]
            self.now = next(times)
            return 10.0 * count + 2

        now = next(times)

    spent = ProcessorTime()
    await spent.follow(Run())  # type: ignore[arg-type]
    assert spent.evaluation_s == 10.0


def test_without_a_peer_the_rest_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours(monkeypatch, 2.0)
    without = interpreter(tmp_path, "raise ModuleNotFoundError(\"No module named 'torch'\")")
    found = measure_time_to_loss(LITTLE, 4, 1, (), without)
    assert "No module named 'torch'" in found["time-to-loss"]["cannot"]
    assert found["command-share"]["ratio"] == 0.1


@pytest.mark.slow
def test_the_peers_minimise_the_same_loss() -> None:
    pytest.importorskip("torch")
    found = measure_time_to_loss(LITTLE, 10, 1, (), sys.executable)["time-to-loss"]
    assert found["ratio"] > 0 and found["loss"] < 2.0 and {"adamctl_s", "torch_s", "scipy_s"} <= found.keys()

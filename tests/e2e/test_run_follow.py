"""A real run is followed while it trains, by two sinks at once; both end with it and have what its summary says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.e2e.conftest import EXAMPLES, Runner


@pytest.mark.slow
def test_a_run_is_followed_while_it_trains(adamctl: Runner, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    state = {"ADAMCTL_STATE": str(tmp_path / "state")}
    run = adamctl.start("train", EXAMPLES / "digits.toml", "--passes", "40", "--plain", **state)
    run.wait_until(run.trained)
    followers = [adamctl.start("run", "follow", "--to", sink, **state) for sink in ("csv", "tensorboard")]
    code, _, stderr = run.wait()
    assert code == 0, stderr
    for follower in followers:
        code, _, stderr = follower.wait(120)
        assert code == 0 and "digits/001" in stderr and stderr.endswith("it ended\n"), stderr
    folder = tmp_path / "runs" / "digits" / "001"
    evaluations = [one["top1"] for one in json.loads((folder / "summary.json").read_text())["evaluations"]]
    assert len(evaluations) > 1
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "evaluation"]
    assert [float(row["top-1/test"]) for row in rows] == evaluations
    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    assert [event.value for event in read.Scalars("top-1/test")] == pytest.approx(evaluations)
    assert [str(event.step) for event in read.Scalars("top-1/test")] == [row["step"] for row in rows]

"""`bench partition` runs whole replicas and partitions of a small network, and counts what they did."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.partition.partition import run_partition_benchmark
from adamctl.config.load import load_experiment, parse_setting
from adamctl.roles.worker.partition.sleeping import NAMELESS

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples"


@pytest.mark.skipif(not NAMELESS, reason="memory is shared between partitions on Linux only")
def test_the_report_has_a_row_for_each_setting() -> None:
    experiment = load_experiment(EXAMPLES / "digits.toml", settings=[parse_setting("optimizer.clip_norm=1")]).experiment
    report = run_partition_benchmark(experiment, [2, 3], threads=2, batch=4, flights=[1, 2], rounds=1, seconds=0.05)
    found = [(row["partitions"], row["flights"]) for row in report["results"]]
    assert found == [(1, 0), (2, 1), (2, 2), (3, 1), (3, 2)]
    for row in report["results"]:
        assert row["images_per_s"] > 0 and row["ratio"] > 0
        assert (row["boundary_bytes_per_example"] > 0) == (row["partitions"] > 1)
        assert 0 <= row["waiting_share"] < 1
    assert report["results"][0]["ratio"] == 1

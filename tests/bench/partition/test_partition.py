"""`bench partition` runs whole replicas and partitions of a small network, and counts what they did."""

from __future__ import annotations

from pathlib import Path

from adamctl.bench.partition.partition import run_partition_benchmark
from adamctl.config.load import load_experiment, parse_setting
from adamctl.roles.worker.partition.sleeping import NAMELESS

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples"


def test_the_report_has_a_row_for_each_setting() -> None:
    """Over TCP, what is sent is what the plan says."""
    experiment = load_experiment(EXAMPLES / "digits.toml", settings=[parse_setting("optimizer.clip_norm=1")]).experiment
    report = run_partition_benchmark(
        experiment, [2, 3], threads=2, batch=4, flights=[2], transports=["shared", "tcp"], rounds=1, seconds=0.05
    )
    rows = [(row["partitions"], row["flights"], row["transport"]) for row in report["results"]]
    shared = "shared memory" if NAMELESS else "Unix socket"
    assert rows == [(1, 0, None), (2, 2, shared), (2, 2, "TCP"), (3, 2, shared), (3, 2, "TCP")]
    for row in report["results"]:
        assert row["images_per_s"] > 0 and row["ratio"] > 0
        assert (row["planned_bytes_per_flight"] > 0) == (row["partitions"] > 1)
        assert 0 <= row["waiting_share"] < 1
        if row["transport"] == "TCP":
            assert row["sent_bytes_per_flight"] == row["planned_bytes_per_flight"]
            assert 0 < row["framing_share"] < 1
        elif row["transport"] is None or NAMELESS:
            assert row["sent_bytes_per_flight"] is None
    assert report["results"][0]["ratio"] == 1

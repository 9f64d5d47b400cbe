"""The benchmark of copies, run on little: it measures both sides and checks its sums."""

from __future__ import annotations

import pytest

from adamctl.bench.replication.replication import ReplicationSettings, run_replication_benchmark
from adamctl.errors import ConfigurationError


def test_copies_are_measured_against_one_and_hot_shards_at_each_rate() -> None:
    settings = ReplicationSettings(
        model_bytes=1 << 20, hot_bytes=64 << 10, pushes_per_s=20.0, factors_of_rate=(1, 4), rounds=1, seconds=0.3
    )
    report = run_replication_benchmark(settings)
    whole, slow, fast = report["results"]
    assert whole["case"] == "whole" and whole["ratio"] > 0
    assert (slow["rate"], fast["rate"]) == ("1x", "4x")
    assert slow["shipped_gb_per_s"] > 0 and fast["records_per_s"] > 0


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"seconds": 0.0}, {"model_bytes": 0}, {"pushes_per_s": -1.0}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        ReplicationSettings(**wrong)  # type: ignore[arg-type]

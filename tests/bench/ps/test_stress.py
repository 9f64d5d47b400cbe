"""Under more clients than it can serve: what is reported. How well it does is not judged here."""

from __future__ import annotations

import pytest

from adamctl.bench.ps.stress import run_ps_stress
from adamctl.errors import ConfigurationError


def test_the_report_has_its_fields() -> None:
    report = run_ps_stress(seconds=0.2, model_bytes=100_000, block_bytes=1 << 14, connections=4, processes=2)
    (row,) = report["results"]
    assert row["errors"] == [] and row["connections"] == 4
    assert row["pushes"] >= 4 and row["pushes_per_connection_min"] >= 1
    assert 0 < row["push_latency_p50_s"] <= row["push_latency_p99_s"] <= row["push_latency_max_s"]
    assert row["within_quota"] and row["server_memory_peak_bytes"] > 0


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigurationError, match="--seconds"):
        run_ps_stress(seconds=0)
    with pytest.raises(ConfigurationError, match="multiple of 4"):
        run_ps_stress(connections=6)

"""Costs by size, clients and servers, and their exponents."""

from __future__ import annotations

import pytest

from adamctl.bench.ps_linear import exponent, run_ps_linear
from adamctl.bench.ps_throughput import PsSettings


def test_a_cost_in_proportion_has_exponent_one() -> None:
    assert exponent((1, 4, 16), (2.0, 8.0, 32.0)) == pytest.approx(1)
    assert exponent((1, 2, 4), (5.0, 5.0, 5.0)) == pytest.approx(0)
    assert exponent((1, 10), (1.0, 100.0)) == pytest.approx(2)
    assert exponent((3,), (1.0,)) == 0


def test_one_thing_grows_at_a_time() -> None:
    settings = PsSettings(model_bytes=100_000, block_bytes=1 << 14, rounds=1, seconds=0.05)
    report = run_ps_linear(settings, model_bytes=(50_000, 100_000), clients=(2,), servers=(2,))
    assert [(row["grows"], row["value"]) for row in report["results"]] == [
        ("model_bytes", 50_000), ("model_bytes", 100_000), ("clients", 2), ("servers", 2),
    ]  # fmt: skip
    assert set(report["exponents"]) == {"model_bytes", "clients", "servers"}
    assert all(row["push_s"] > 0 and row["pull_s"] > 0 for row in report["results"])

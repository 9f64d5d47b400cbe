"""Costs by size, clients and servers, and their exponents."""

from __future__ import annotations

from typing import Any

import pytest

from adamctl.bench.ps import linear as ps_linear
from adamctl.bench.ps.linear import exponent, run_ps_linear
from adamctl.bench.ps.throughput import PsSettings


def test_a_cost_in_proportion_has_exponent_one() -> None:
    assert exponent((1, 4, 16), (2.0, 8.0, 32.0)) == pytest.approx(1)
    assert exponent((1, 2, 4), (5.0, 5.0, 5.0)) == pytest.approx(0)
    assert exponent((1, 10), (1.0, 100.0)) == pytest.approx(2)
    assert exponent((3,), (1.0,)) == 0


def test_one_thing_grows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that pushes at 1 GB/s and pulls the faster the more servers there are stands in for the real one."""
    measured = []

    def planted(case: PsSettings) -> dict[str, Any]:
        measured.append((case.model_bytes, case.clients, case.servers, case.block_bytes))
        return {"results": [{"gb_per_s": 1.0}, {"gb_per_s": 2.0 * case.servers[0]}]}

    monkeypatch.setattr(ps_linear, "run_ps_benchmark", planted)
    settings = PsSettings(model_bytes=100_000, block_bytes=1 << 16)
    report = run_ps_linear(settings, model_bytes=(50_000, 100_000), clients=(1, 2), servers=(1, 4))
    assert measured == [
        (50_000, (1,), (1,), 50_000), (100_000, (1,), (1,), 1 << 16),
        (100_000, (1,), (1,), 1 << 16), (100_000, (2,), (1,), 1 << 16),
        (100_000, (1,), (1,), 1 << 16), (100_000, (1,), (4,), 1 << 16),
    ]  # fmt: skip
    assert [(row["grows"], row["value"]) for row in report["results"]] == [
        ("model_bytes", 50_000), ("model_bytes", 100_000), ("clients", 1), ("clients", 2),
        ("servers", 1), ("servers", 4),
    ]  # fmt: skip
    assert [row["push_s"] for row in report["results"]] == pytest.approx([0.5e-4, 1e-4, 1e-4, 2e-4, 1e-4, 1e-4])
    assert report["results"][5]["pull_s"] == pytest.approx(0.125e-4)
    assert report["exponents"] == {
        "model_bytes": pytest.approx({"push_s": 1, "pull_s": 1}),
        "clients": pytest.approx({"push_s": 1, "pull_s": 1}),
        "servers": pytest.approx({"push_s": 0, "pull_s": -1}),
    }


def test_real_servers_are_measured() -> None:
    settings = PsSettings(model_bytes=100_000, block_bytes=1 << 14, rounds=1, seconds=0.05)
    report = run_ps_linear(settings, model_bytes=(50_000,), clients=(), servers=())
    (row,) = report["results"]
    assert row["push_s"] > 0 and row["pull_s"] > 0

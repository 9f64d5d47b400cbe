"""The parts of `bench data` that start data servers, for a moment each: both sides are read."""

from __future__ import annotations

import os

import pytest

from adamctl.bench.data import serve, wire
from adamctl.bench.data.data import run_data_benchmark
from adamctl.bench.data.parts import DataSettings

pytestmark = pytest.mark.slow


def test_bytes_take_at_most_the_bar_of_what_floats_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "IMAGES", 3000)
    rows = run_data_benchmark(DataSettings(rounds=1, seconds=0.2), ("wire",))["results"]
    assert [row["part"] for row in rows] == ["wire-bytes", "wire-rate"]
    assert rows[0]["meets"] and 780 < rows[0]["details"]["uint8_bytes"] < 800
    assert rows[1]["ratio"] > 0


def test_one_and_two_servers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.environ.get("ADAMCTL_DATA")
    if not data:
        pytest.skip("ADAMCTL_DATA does not name a folder with real data")
    monkeypatch.setattr(serve, "ROUND_S_MIN", 0.5)
    (row,) = run_data_benchmark(DataSettings((data,), rounds=1, seconds=0.2), ("serve",))["results"]
    assert row["details"]["one_images_per_s"] > 0 and row["details"]["two_images_per_s"] > 0
    (row,) = run_data_benchmark(DataSettings((), rounds=1), ("serve",))["results"]
    assert row["ratio"] is None and "caltech-10.tar is in none of the folders" in row["details"]["cannot"]

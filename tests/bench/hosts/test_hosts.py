"""The benchmark of runs on many hosts, on little."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adamctl.bench.hosts import bars, many, whole_runs
from adamctl.bench.watched_run import Sample
from adamctl.cli.bench import hosts as command


def test_the_command_knows_the_parts() -> None:
    assert command.PARTS == bars.PARTS == tuple(bars.BARS)


async def test_a_few_agents_in_few_processes_are_placed() -> None:
    found = await many.measure(5, 0.5)
    assert found["hosts"] == 5 and found["roles"] == 5 + 1 + 1 + 3
    assert 0 < found["placed_s"] < 120 and 0 <= found["front_share"] < 5


def test_a_stall_is_the_longest_time_without_a_new_example() -> None:
    samples = [Sample(at, count) for at, count in ((0, 0), (1, 5), (2, 5), (3, 5), (4, 9), (5, 10))]
    assert whole_runs.stall_s(samples, 0.5, 5.0) == 3
    assert whole_runs.stall_s(samples, 4.5, 10.0) == 5, "the end counts, too"
    assert whole_runs.stall_s(samples, 20.0, 21.0) == 1


async def test_what_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(hosts: int, seconds: float) -> dict[str, Any]:
        from adamctl.errors import RunFailedError

        await asyncio.sleep(0)
        raise RunFailedError("3 of 5 roles are not placed")

    monkeypatch.setattr(many, "measure", fails)
    (row,) = await bars.measure(("front",), 5, 1, 0.1, lambda text: None)
    assert row["ratio"] is None and row["meets"] is None and "not placed" in row["details"]["cannot"]


@pytest.mark.slow
async def test_a_killed_server_and_a_frozen_host_are_survived() -> None:
    rows = await bars.measure(("role", "host"), 5, 1, 1.0, lambda text: None)
    assert all(row["ratio"] is not None for row in rows), rows

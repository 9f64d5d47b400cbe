"""Whole runs of partitions inside one event loop: every role real, over the in-memory network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from adamctl.roles.ps.client.wire_choice import WireChoice
from adamctl.roles.worker.partition.threads import FlightThreads
from tests.roles.worker.test_server import check, make_experiment, plain_kernels, world

__all__ = ["plain_kernels"]


@pytest.mark.parametrize(
    "train",
    [
        {"wire_push": "bfloat16", "wire_pull": "bfloat16"},
        {"protocol": "factors", "wire_push": "float16", "wire_pull": "float16"},
    ],
    ids=str,
)
async def test_partitions_push_and_fetch_in_16_bits(
    tmp_path: Path, train: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded: set[tuple[int, str]] = set()
    start = WireChoice.start

    def noted(self: WireChoice, push: Any, only: Any = None) -> Any:
        rounding = start(self, push, only)
        if rounding is not None:
            rounded.add((id(self), self.pull))
        return rounding

    monkeypatch.setattr(WireChoice, "start", noted)
    async with world(tmp_path, servers=2, workers=2) as w:
        experiment = make_experiment(tmp_path, train=train, workers=2, partitions=2, ps=2)
        check(await w.summary(await w.start_run(experiment)), workers=2)
    assert len(rounded) == 2 and {pull for _, pull in rounded} == {train["wire_pull"]}


async def test_replicas_of_partitions_are_at_most_so_many_steps_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica is slow; without a bound the other one would be many steps ahead of it."""
    finish, epochs = FlightThreads._finish, set[int]()

    def slow(self: Any, one: Any) -> None:
        epochs.add(epoch := self._slots._parts.group.epoch)
        if epoch == min(epochs):
            time.sleep(0.005)
        finish(self, one)

    monkeypatch.setattr(FlightThreads, "_finish", slow)
    async with world(tmp_path, workers=4) as w:
        train = {"max_staleness": 2, "passes": 4}
        experiment = make_experiment(tmp_path, train=train, workers=4, partitions=2)
        summary = await w.summary(await w.start_run(experiment))
    check(summary, passes=4, workers=4)
    assert 1 <= summary["steps_ahead_max"] <= 2
    assert summary["step_waits"] > 0

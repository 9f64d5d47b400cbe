"""Bytes that data servers have read, over their restarts, in the result of a run."""

from __future__ import annotations

import asyncio

import pytest

from adamctl.roles.coordinator import data_reading
from adamctl.roles.coordinator.data_reading import DataReading, ReadTotal


def test_nothing_is_known_before_a_server_tells() -> None:
    total = ReadTotal()
    total.add({})
    assert total.total_bytes is None
    total.add({"data-1": 0})
    assert total.total_bytes == 0


def test_servers_add_up_and_a_restarted_one_counts_from_0() -> None:
    total = ReadTotal()
    for told in ({"data-1": 100}, {"data-1": 150, "data-2": 30}, {"data-2": 40}, {"data-1": 20, "data-2": 40}):
        total.add(told)
    assert total.total_bytes == 150 + 20 + 40


async def test_it_looks_until_it_is_cancelled_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        asked, closed = 0, False
        often = asyncio.Event()

        async def read_bytes(self, data: str, *, deadline_s: float) -> dict[str, int]:
            assert data == "set"
            self.asked += 1
            if self.asked == 3:
                self.often.set()
            return {"data-1": 10 * self.asked}

        async def close(self) -> None:
            self.closed = True

    client = Client()
    reading = DataReading(client, "set")  # type: ignore[arg-type]
    monkeypatch.setattr(data_reading, "LOOK_EVERY_S", 0.0)
    following = asyncio.create_task(reading.follow())
    await client.often.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert client.closed and reading.total.total_bytes is not None and reading.total.total_bytes >= 20

"""A worker that asks ahead never waits for a data server that is fast enough: in virtual time, so to the bit."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.data.client.data_client import Batch, Range, ReadAhead

TICK_S = 2.0**-10  # so that sums of times are exact


class SerialServer:
    """Prepares one range after the other, in the order asked; an answer then takes some time on its way."""

    def __init__(self, prepare: int, way: int) -> None:
        self.prepare_s, self.way_s = prepare * TICK_S, way * TICK_S
        self._free_at_s = 0.0

    async def read(self, data: Any, split: str, pass_number: int, start: int, stop: int, into: Any = None) -> Batch:
        loop = asyncio.get_running_loop()
        self._free_at_s = max(loop.time(), self._free_at_s) + self.prepare_s
        await asyncio.sleep(self._free_at_s + self.way_s - loop.time())
        return Batch(np.full((1, 1), start, np.float32), np.zeros(1, np.int32))


async def waits(prepare: int, way: int, compute: int, in_flight: int, ranges: int) -> list[float]:
    """Returns how many ticks a worker waits for each range that it computes on for `compute` ticks."""
    server = SerialServer(prepare, way)
    ahead = ReadAhead(server, "d", ranges_in_flight=in_flight)  # type: ignore[arg-type]

    async def ask() -> None:
        for number in range(ranges):
            await ahead.ask(Range("train", 0, number, number + 1))

    asking = asyncio.create_task(ask())
    found = []
    for number in range(ranges):
        before_s = ahead.waited_s
        assert (await ahead.take()).images[0, 0] == number
        found.append((ahead.waited_s - before_s) / TICK_S)
        await asyncio.sleep(compute * TICK_S)
    await asking
    return found


times = st.integers(1, 40)


@settings(max_examples=30, deadline=None)
@given(times, st.integers(0, 200), st.integers(0, 20))
def test_after_the_first_ranges_nobody_waits_for_a_server_that_keeps_up(prepare: int, way: int, spare: int) -> None:
    """Enough are in flight where those that are being computed on last as long as an answer takes."""
    compute = prepare + spare
    enough = -(-(prepare + way) // compute)
    found = run_virtual(waits(prepare, way, compute, enough, 4 * enough + 8))
    assert found[0] == prepare + way and not any(found[enough:])


@settings(max_examples=30, deadline=None)
@given(times, st.integers(1, 200), st.integers(0, 20))
def test_with_one_range_less_in_flight_it_waits_again_and_again(prepare: int, way: int, spare: int) -> None:
    compute = prepare + spare
    few = -(-(prepare + way) // compute) - 1
    if few:
        assert sum(run_virtual(waits(prepare, way, compute, few, 6 * few + 8))[2 * few :]) > 0


@settings(max_examples=30, deadline=None)
@given(times, st.integers(1, 40), st.integers(0, 100))
def test_a_server_that_is_too_slow_is_waited_for_by_what_it_lacks(compute: int, lack: int, way: int) -> None:
    found = run_virtual(waits(compute + lack, way, compute, 300, 200))
    assert found[-50:] == [lack] * 50

"""Flights wait until they are granted, and parameters of an evaluation are pulled once."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.errors import RunFailedError
from adamctl.kernels.partition.program import Batch
from adamctl.roles.worker.core.open_flights import SERVERS
from adamctl.roles.worker.partition.flight_engine import Counts, FlightEngine, Parts
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.wire.messages import GroupMember

GROUP = Group("job", 4, 1, (GroupMember("w0", 1, "here", ()), GroupMember("w1", 1, "here", ())), "plan", 2, 2)
NOTHING: Any = None
PARTS = Parts(GROUP, NOTHING, NOTHING, NOTHING, 1, 0, logging.getLogger("test_flight_engine"))


class Engine(FlightEngine):
    """Has threads that do nothing."""

    pushes = 0

    def __init__(self) -> None:
        self.pulls, self.answer = 0, asyncio.Event()
        self.told_links, self.begun = list[tuple[int, int]](), list[int]()
        links: Any = SimpleNamespace(submitted=lambda *of: self.told_links.append(of))
        super().__init__(PARTS, links, lambda done: None, lambda failure: None)

    async def start(self) -> None:
        self._threads = SimpleNamespace(  # type: ignore[assignment]
            submit=lambda flight: self.begun.append(flight.number), stop=lambda: None, join=lambda left_s: None,
            held_s=0.0, running=False,
        )  # fmt: skip

    def _finished(self, done: FlightDone) -> None: ...

    async def flush(self) -> None: ...

    async def pull_snapshot(self) -> None:
        self.pulls += 1
        await self.answer.wait()

    def take_counts(self) -> Counts:
        return Counts()


def flight(number: int) -> Flight:
    return Flight(number, Batch(np.zeros((3, 1), np.float32), np.zeros(3, np.int32)))


async def test_flights_begin_in_their_order_up_to_the_one_that_is_granted() -> None:
    engine = Engine()
    await engine.start()
    engine._granted = 0
    for number in (1, 2, 3):
        engine.submit(flight(number))
    assert not engine.begun
    engine.grant(2)
    engine.grant(1)
    assert engine.begun == [1, 2] and engine.told_links == [(1, 3), (2, 3)]
    engine.grant(9)
    engine.submit(flight(4))
    assert engine.begun == [1, 2, 3, 4]
    await engine.close()


async def test_parameters_of_an_evaluation_are_pulled_once_for_all_who_wait() -> None:
    engine = Engine()
    waiting = [asyncio.ensure_future(engine.snapshot(7)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting) and engine.pulls == 1
    engine.answer.set()
    await asyncio.gather(*waiting)
    await engine.snapshot(7)
    assert engine.pulls == 1
    await engine.snapshot(8)
    assert engine.pulls == 2


async def test_before_it_has_begun_a_flight_waits_for_servers() -> None:
    engine = Engine()
    assert engine.standing(1).state == SERVERS
    assert engine.told()["partition"] == 1 and engine.told()["flights"] == 0 and not engine.hangs
    engine.snapshots = asyncio.ensure_future(engine.snapshot(1))  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    await engine.close()
    await asyncio.gather(engine.snapshots, return_exceptions=True)  # type: ignore[attr-defined]
    assert engine.snapshots.cancelled(), "who waits for parameters does not for ever"  # type: ignore[attr-defined]


async def test_flights_that_do_not_fit_are_said_in_words() -> None:
    def make() -> Any:
        raise MemoryError("cannot get 9 bytes")

    with pytest.raises(RunFailedError, match="a flight of 2 examples does not fit in memory: cannot get 9 bytes; take"):
        await Engine()._run(make, NOTHING)

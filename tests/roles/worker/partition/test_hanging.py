"""The lead asks where the oldest flight stands when none is finished for long, and names the member that hangs."""

from __future__ import annotations

import asyncio

import pytest

from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.worker.core.open_flights import DONE, SERVERS, WAITS, WORKS, Patience, Standing
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.hanging import HangWatcher, Oldest
from adamctl.roles.worker.partition.links import NeighbourError
from adamctl.wire.messages import GroupMember

MEMBERS = tuple(GroupMember(f"w{number}", number, "here", ()) for number in range(3))
GROUP = Group("job", 4, 0, MEMBERS, "plan", 2, 2)
PATIENCE = Patience(least_s=10.0, first_s=50.0)


class Flights:
    """What the watcher sees: flight 1 open from the start."""

    def __init__(self, **standings: Standing | None) -> None:
        self.told = {int(name[1:]): standing for name, standing in standings.items()}
        self.oldest: Oldest | None = Oldest(1, frozenset(self.told))
        self.asked: list[tuple[float, int, int]] = []
        self.watcher = HangWatcher(GROUP, PATIENCE, lambda: self.oldest, self.ask)
        self.watcher.watch.begins(asyncio.get_running_loop().time())

    async def ask(self, partition: int, flight: int) -> Standing | None:
        self.asked.append((asyncio.get_running_loop().time(), partition, flight))
        await asyncio.sleep(0.5)
        return self.told[partition]


def test_who_hangs_is_named_when_the_patience_is_over() -> None:
    async def scenario() -> None:
        began_s = asyncio.get_running_loop().time()
        flights = Flights(p0=Standing(WAITS, (1,)), p1=Standing(WORKS, (), 50.0), p2=Standing(DONE))
        text = r"partition 1 \(w1\) hangs: no flight .* 5\d s; .*, and 0 waits"
        with pytest.raises(NeighbourError, match=text) as told:
            await flights.watcher.run()
        assert told.value.partition == 1
        assert {flight for _, _, flight in flights.asked} == {1}
        assert all(at_s - began_s >= PATIENCE.first_s for at_s, _, _ in flights.asked)

    run_virtual(scenario())


def test_the_lead_names_itself_and_whoever_does_not_answer() -> None:
    async def scenario() -> None:
        for standings, named in (
            ({"p0": Standing(WORKS), "p1": Standing(WAITS, (0,))}, 0),
            ({"p0": Standing(WORKS), "p2": None}, 2),
        ):
            with pytest.raises(NeighbourError) as told:
                await Flights(**standings).watcher.run()
            assert told.value.partition == named

    run_virtual(scenario())


def test_servers_are_waited_for_without_end_and_a_hang_afterwards_is_found() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        flights = Flights(p0=Standing(WAITS, (1,)), p1=Standing(SERVERS))
        watching = asyncio.create_task(flights.watcher.run())
        await asyncio.sleep(1000.0)
        assert not watching.done() and flights.asked
        flights.watcher.watch.finished(loop.time(), 1)
        flights.oldest, flights.told[1] = Oldest(2, frozenset((0, 1))), Standing(WORKS)
        began_s = loop.time()
        with pytest.raises(NeighbourError):
            await watching
        assert loop.time() - began_s < 6 * PATIENCE.first_s, "the wait for servers has not made it more patient"

    run_virtual(scenario())


def test_a_flight_that_is_finished_while_members_are_asked_was_slow_alone() -> None:
    async def scenario() -> None:
        flights = Flights(p0=Standing(WORKS))
        watching = asyncio.create_task(flights.watcher.run())
        while not flights.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        flights.watcher.watch.finished(asyncio.get_running_loop().time(), 0)
        flights.oldest = None
        await asyncio.sleep(10 * PATIENCE.first_s)
        assert not watching.done() and len(flights.asked) == 1
        watching.cancel()

    run_virtual(scenario())

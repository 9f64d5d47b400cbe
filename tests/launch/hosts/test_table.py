"""When a host counts as lost, by the clock of a front that may itself have stood still."""

from __future__ import annotations

import asyncio

from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.table import LOST_AFTER_S, Arrived, HostTable, Lost
from adamctl.net.testing.virtual_clock import VirtualTimeLoop, run_virtual
from adamctl.wire.messages import HostJoinRequest
from tests.launch.hosts.hosts_under_test import world

EVERY_S = 1.0


def joined(now_s: float) -> HostTable:
    table = HostTable("small/001", "1")
    table.tick(now_s, EVERY_S)
    table.join(HostJoinRequest("h1", 1, "m1", 8, 1 << 30, "h1", "", "1"), 1, now_s)
    assert table.take_events() == [Arrived("h1", again=False)]
    return table


def test_a_silent_host_is_lost_by_a_front_that_looks() -> None:
    table = joined(100.0)
    for after_s in range(1, 5):
        table.tick(100.0 + after_s, EVERY_S)
    assert table.take_events() == []
    table.tick(100.0 + LOST_AFTER_S, EVERY_S)
    assert table.take_events() == [Lost("h1", "nothing was heard from it for 5 s")]


def test_the_time_for_which_the_front_stood_still_is_no_silence_of_a_host() -> None:
    table = joined(100.0)
    table.tick(101.0, EVERY_S)
    table.tick(161.0, EVERY_S)
    assert table.take_events() == [] and table.next_s() == 164.0, "the rest of its 5 s"
    for now_s in (162.0, 163.0, 164.0):
        assert table.take_events() == []
        table.tick(now_s, EVERY_S)
    assert table.take_events() == [Lost("h1", "nothing was heard from it for 5 s")]


def test_a_host_that_was_heard_before_the_front_looked_again_gets_no_time_on_top() -> None:
    table = joined(100.0)
    table.poll("h1", 1, 0, 1, 160.0)
    table.tick(160.0, EVERY_S)
    assert table.next_s() == 160.0 + LOST_AFTER_S


def test_a_front_that_stood_still_loses_no_host() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            loop.now_s += 30.0
            await asyncio.sleep(30.0)
            assert not [note for note in w.notes if "is lost" in note] and w.failed is None

    run_virtual(whole())

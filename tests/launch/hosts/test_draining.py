"""Servers of a host that will be taken away are emptied, however early the notice comes, and whatever is in the way."""

from __future__ import annotations

import asyncio

import pytest

from adamctl.launch.hosts import draining
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.places.places import Draining
from adamctl.net.testing.virtual_clock import run_virtual
from tests.launch.hosts.hosts_under_test import world


class Drains:
    """What each try comes to; the last one succeeds."""

    def __init__(self, *problems: str) -> None:
        self.left = [*problems, ""]

    async def __call__(self, *arguments: object) -> str:
        return self.left.pop(0)


def test_what_cannot_be_emptied_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drains = Drains("it is no member of the cluster", "no controller answers", "no controller answers")
    monkeypatch.setattr(draining, "drain", drains)

    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1)) as w:
            await w.until(lambda: len(w.serving) == 7)
            home = w.keeper.placed["ps-1"].host
            w.places.said.put_nowait(Draining(home, 60.0, "preempted"))
            await w.until(lambda: f"{home} is empty and is let go" in w.notes, 30.0)
            said = [note for note in w.notes if "cannot be emptied" in note]
            assert said == ["ps-1 cannot be emptied yet: it is no member of the cluster"] and not drains.left

    run_virtual(whole())


def test_a_notice_that_comes_before_the_controllers_are_known_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1)) as w:
            await w.until(lambda: len(w.serving) == 7)
            known, w.roles._starter.controllers = w.roles._starter.controllers, ()
            home = w.keeper.placed["ps-1"].host
            w.places.said.put_nowait(Draining(home, 60.0, "preempted"))
            await w.until(lambda: any("cannot be emptied yet: it is not known yet" in note for note in w.notes))
            monkeypatch.setattr(draining, "drain", Drains())
            w.roles._starter.controllers = known
            await w.until(lambda: f"{home} is empty and is let go" in w.notes, 30.0)

    run_virtual(whole())


def test_a_server_that_has_been_moved_is_emptied_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    drains = Drains(*["no controller answers"] * 100)
    monkeypatch.setattr(draining, "drain", drains)

    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1)) as w:
            await w.until(lambda: len(w.serving) == 7)
            home = w.keeper.placed["ps-1"].host
            w.places.said.put_nowait(Draining(home, 20.0, "preempted"))
            await w.until(lambda: w.keeper.placed["ps-1"].host != home)
            left = len(drains.left)
            await asyncio.sleep(10.0)
            assert len(drains.left) >= left - 1 > 0

    run_virtual(whole())

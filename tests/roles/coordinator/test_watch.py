"""Whom a run takes for lost by what a connection to it says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from adamctl.config.records import NodeRecord
from adamctl.errors import UnreachableError
from adamctl.roles.coordinator import watch

SERVER = NodeRecord("p", "ps", 5, ("p:1",), "h", 1)


@dataclass
class Peer:
    incarnation: int


@dataclass
class FakeConnection:
    peer: Peer
    closed: bool = False

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeContext:
    """Whom it reaches says one incarnation after the other; with none left it is refused."""

    incarnations: list[int]
    made: list[FakeConnection] = field(default_factory=list)
    none_left: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self, record: NodeRecord, deadline_s: float) -> FakeConnection:
        if not self.incarnations:
            raise UnreachableError("refused")
        self.made.append(FakeConnection(Peer(self.incarnations.pop(0))))
        if not self.incarnations:
            self.none_left.set()
        return self.made[-1]


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.001)


async def causes_of(context: FakeContext) -> list[str]:
    causes: list[str] = []
    async with asyncio.timeout(10):
        await watch.watch_server(cast(Any, context), SERVER, causes.append)
    return causes


async def test_one_that_refuses_is_gone() -> None:
    assert await causes_of(FakeContext([])) == ["refused"]


async def test_another_process_in_its_place_means_that_it_is_gone() -> None:
    assert await causes_of(FakeContext([6])) == ["it has restarted, and what it held is lost"]


async def test_one_that_has_not_heard_yet_that_it_is_a_member_is_asked_again() -> None:
    """It listens before it is registered, and its record is there before it is told so."""
    context = FakeContext([0, 0, 5])
    task = asyncio.ensure_future(causes_of(context))
    async with asyncio.timeout(10):
        await context.none_left.wait()
        await asyncio.sleep(0.01)
    assert not task.done() and [one.closed for one in context.made] == [True, True, False]
    context.made[-1].closed = True
    assert await task == ["refused"]

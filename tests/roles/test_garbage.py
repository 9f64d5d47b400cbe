"""A role that lives for weeks frees circles of old objects, and no collection blocks it for long again and again."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles import garbage
from adamctl.roles.garbage import EVERY_S, LONG_S, collect_old, collect_seldom


class Frame:
    """Refers to itself, as a frame does that has an error whose traceback has the frame."""

    def __init__(self) -> None:
        self.itself = self


def old_circle() -> weakref.ref[Frame]:
    """Returns one that nobody needs, and that collections of young objects no longer look at."""
    made = Frame()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(made)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each freezing, which is not done."""
    noted: list[str] = []
    monkeypatch.setattr(garbage.gc, "freeze", lambda: noted.append("frozen"))
    return noted


def collecting(during: Callable[[], Coroutine[None, None, None]], ready: Callable[[], bool] = lambda: True) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(collect_old(ready))
        await during()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run_virtual(scenario())


def test_an_old_circle_is_freed_within_the_interval(frozen: list[str]) -> None:
    async def wait() -> None:
        await asyncio.sleep(1.1 * EVERY_S)
        for _ in range(2):
            circle = old_circle()
            gc.collect(0)
            gc.collect(1)
            assert circle() is not None
            await asyncio.sleep(EVERY_S)
            assert circle() is None

    collecting(wait)


def test_what_there_is_when_a_role_is_at_work_is_frozen(frozen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    serving: list[bool] = []
    monkeypatch.setattr(garbage.gc, "collect", lambda: None)

    async def wait() -> None:
        await asyncio.sleep(2 * EVERY_S)
        assert frozen == [], "not even ready: it may still read its store"
        serving.append(True)
        await asyncio.sleep(0.9 * EVERY_S)
        assert frozen == [], "its kernels are not loaded yet"
        await asyncio.sleep(3 * EVERY_S)
        assert frozen == ["frozen"]

    collecting(wait, lambda: bool(serving))


def test_after_a_long_collection_what_it_left_is_frozen(frozen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, lasts_s = [0.0], [LONG_S / 2]

    def collect() -> None:
        now_s[0] += lasts_s[0]

    monkeypatch.setattr(garbage.gc, "collect", collect)
    monkeypatch.setattr(garbage.time, "thread_time", lambda: now_s[0])

    async def wait() -> None:
        await asyncio.sleep(4.5 * EVERY_S)
        assert frozen == ["frozen"]
        lasts_s[0] = 2 * LONG_S
        await asyncio.sleep(EVERY_S)
        assert frozen == ["frozen"] * 2

    collecting(wait)


def test_young_objects_are_collected_seldom(frozen: list[str]) -> None:
    before = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.get_threshold()[0] == garbage.ALLOCATIONS and frozen == ["frozen"]
    finally:
        gc.set_threshold(*before)

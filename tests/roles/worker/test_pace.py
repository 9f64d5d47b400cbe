"""A replica's threads wait at the gate, and its event loop tells the coordinator how far it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from adamctl.errors import RemoteError
from adamctl.roles.worker.pace import Pacer, StepGate
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import RunStepRequest


def gate() -> tuple[StepGate, list[str]]:
    calls: list[str] = []
    return StepGate(lambda: calls.append("changed")), calls


def test_steps_begin_up_to_the_limit() -> None:
    made, calls = gate()
    made.allow(2, 0)
    assert made.begin() and made.begin()
    assert made.stand() == (0, 0, 0)
    made.finish()
    assert made.stand() == (1, 0, 0) and calls == ["changed"]


def test_a_thread_beyond_the_limit_waits_and_says_so() -> None:
    made, _ = gate()
    began = threading.Event()
    thread = threading.Thread(target=lambda: made.begin() and began.set())
    thread.start()
    for _ in range(1000):
        if made.stand().wanted:
            break
        threading.Event().wait(0.005)
    assert made.stand() == (0, 1, 0)
    made.allow(1, 0)
    thread.join(10)
    assert began.is_set() and made.waits == 1 and made.wait_s > 0


def test_a_thread_that_waits_is_let_go_when_the_replica_stops() -> None:
    made, _ = gate()
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(made.begin()))
    thread.start()
    made.stop()
    thread.join(10)
    assert found == [False]


def test_what_was_granted_before_a_rest_is_void_also_when_it_comes_late() -> None:
    made, _ = gate()
    made.allow(9, made.stand().rests)
    assert made.begin()
    made.finish()
    before = made.stand().rests
    made.rest()
    made.allow(9, before)
    thread = threading.Thread(target=made.begin)
    thread.start()
    for _ in range(1000):
        if made.stand().wanted:
            break
        threading.Event().wait(0.005)
    assert made.stand().wanted == 2
    made.stop()
    thread.join(10)


class Coordinator:
    """Grants `limit` steps; holds requests that want more until it is raised, or another one comes."""

    def __init__(self) -> None:
        self.limit = 0
        self.requests: list[RunStepRequest] = []
        self.raised = asyncio.Condition()
        self.failure: Exception | None = None

    async def __call__(self, request: RunStepRequest) -> int:
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        number = len(self.requests)
        async with self.raised:
            self.raised.notify_all()
            if request.wait_s:
                await self.raised.wait_for(lambda: self.limit >= request.wanted or len(self.requests) > number)
        return self.limit

    async def allow(self, limit: int) -> None:
        async with self.raised:
            self.limit = limit
            self.raised.notify_all()


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_a_replica_goes_as_far_as_the_coordinator_allows() -> None:
    coordinator = Coordinator()
    pacer = Pacer("w", 3, coordinator, StepGate)
    running = asyncio.create_task(pacer.run())
    begun = 0

    def work() -> None:
        nonlocal begun
        while pacer.gate.begin():
            begun += 1
            pacer.gate.finish()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for limit in (3, 4, 9):
        await coordinator.allow(limit)
        await until(lambda limit=limit: begun == limit and pacer.gate.stand().done == limit)
        await until(lambda limit=limit: any(r.done == limit and r.wanted == limit + 1 for r in coordinator.requests))
        assert begun == limit
    pacer.gate.stop()
    for thread in threads:
        thread.join(10)
    assert {(request.node, request.incarnation) for request in coordinator.requests} == {("w", 3)}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_refusal_ends_the_pacer() -> None:
    coordinator = Coordinator()
    coordinator.failure = RemoteError(ErrorCode.STALE_INCARNATION, "taken for dead")
    pacer = Pacer("w", 3, coordinator, StepGate)
    running = asyncio.create_task(pacer.run())
    thread = threading.Thread(target=pacer.gate.begin)
    thread.start()
    with pytest.raises(RemoteError, match="taken for dead"):
        async with asyncio.timeout(10):
            await running
    pacer.gate.stop()
    thread.join(10)

"""One replica in step by itself: a test plays its thread, its servers and the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adamctl.roles.worker import lockstep
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.core.slots import StepActions
from adamctl.roles.worker.lockstep import Lockstep, Place, place_of
from adamctl.wire.messages import RunStepRequest, TrainTask


class Played:
    """A lockstep whose thread, servers and coordinator are played by the test."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.answers: dict[Place, asyncio.Future[bool]] = {}
        self.channels: dict[int, asyncio.Future[bool]] = {}
        self.asked: list[RunStepRequest] = []
        self.reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.lockstep = Lockstep("w", 1, self, self.submit, self.ask, self.finished)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self.lockstep.run())
        self.computed: list[Batch] = []

    def submit(self, batch: Batch, place: Place, channel: int) -> None:
        assert channel not in self.channels or self.channels[channel].done()
        self.log.append(f"compute {batch.learning_rate:g}")
        self.computed.append(batch)
        self.lockstep.done(BatchDone(batch, 0.0, 0, 0.0, 0.0, StepActions(object(), True)))  # type: ignore[arg-type]

    def push(self, slot: object, place: Place, channel: int) -> asyncio.Future[bool]:
        before = self.channels.get(channel)
        assert before is None or before.done(), "one of its own"
        self.log.append(f"push {place.step}.{place.part}")
        self.channels[channel] = self.answers[place] = asyncio.get_running_loop().create_future()
        return self.answers[place]

    async def fetch(self) -> None:
        self.log.append("fetch")

    async def ask(self, request: RunStepRequest) -> int:
        self.asked.append(request)
        self.reply = asyncio.get_running_loop().create_future()
        return await self.reply

    def finished(self, done: BatchDone | Batch) -> None:
        batch = done if isinstance(done, Batch) else done.batch
        self.log.append(f"{'skip' if isinstance(done, Batch) else 'done'} {batch.learning_rate:g}")

    def add(self, step: int, part: int = 0, parts: int = 2) -> None:
        task = TrainTask(1, 0, 0, 1, 0.0, 0.0)
        batch = Batch(task, np.zeros(0), np.zeros(0, np.int32), step + part / 10)  # type: ignore[arg-type]
        self.lockstep.add(Place(step, part, parts), batch)

    async def answer(self, step: int, part: int = 0, parts: int = 2, *, well: bool = True) -> list[str]:
        self.answers.pop(Place(step, part, parts)).set_result(well)
        return await self.said()

    async def said(self) -> list[str]:
        """Returns what has happened since the last call, when nothing more does."""
        for _ in range(20):
            await asyncio.sleep(0)
        said, self.log[:] = list(self.log), []
        return said


async def play(scene: Callable[[Played], Any]) -> None:
    played = Played()
    try:
        await scene(played)
    finally:
        played.task.cancel()
        await asyncio.gather(played.task, return_exceptions=True)


async def test_weights_are_fetched_when_the_step_before_is_complete() -> None:
    async def scene(p: Played) -> None:
        p.add(1)
        p.add(2)
        assert await p.said() == ["fetch", "compute 1", "push 1.0"]
        assert await p.answer(1) == ["done 1", "fetch", "compute 2", "push 2.0"]

    await play(scene)


async def test_the_part_of_another_is_made_from_the_weights_of_its_step() -> None:
    async def scene(p: Played) -> None:
        p.add(1)
        p.add(2)
        await p.said()
        p.add(1, part=1)
        assert await p.said() == ["compute 1.1", "push 1.1"]
        assert await p.answer(1) == []
        assert await p.answer(1, part=1) == ["done 1", "done 1.1", "fetch", "compute 2", "push 2.0"]
        p.add(1, part=1)
        assert await p.said() == ["skip 1.1"], "all have had that step"
        assert await p.answer(2) == ["done 2"]

    await play(scene)


async def test_a_step_whose_push_has_failed_is_not_complete() -> None:
    async def scene(p: Played) -> None:
        p.add(1)
        p.add(1, part=1)
        p.add(2)
        p.add(9)
        await p.said()
        assert await p.answer(1) == []
        assert await p.answer(1, part=1, well=False) == []
        assert p.lockstep.settled == 0, "the coordinator is told nothing else"

    await play(scene)


async def test_who_has_no_part_in_the_step_before_asks_when_it_is_complete() -> None:
    async def scene(p: Played) -> None:
        p.add(5)
        assert await p.said() == []
        assert [(request.done, request.wanted) for request in p.asked] == [(0, 5)]
        p.reply.set_result(3)
        await p.said()
        assert [(request.done, request.wanted) for request in p.asked[1:]] == [(2, 5)]
        p.add(3)
        assert await p.said() == ["fetch", "compute 3", "push 3.0"], "somebody has died meanwhile"
        p.reply.set_result(5)
        assert await p.said() == ["done 3", "fetch", "compute 5", "push 5.0"]

    await play(scene)


async def test_answers_that_do_not_come_are_asked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "STUCK_S", 0.01)

    async def scene(p: Played) -> None:
        p.add(1)
        await p.said()
        async with asyncio.timeout(10):
            while not p.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        p.add(2)
        p.reply.set_result(2)
        assert await p.said() == ["done 1", "fetch", "compute 2", "push 2.0"]

    await play(scene)


async def test_one_answer_of_several_is_enough_if_the_others_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that have lost a step together wait for the part that was answered, and nobody sends that again."""
    monkeypatch.setattr(lockstep, "STUCK_S", 0.01)

    async def scene(p: Played) -> None:
        p.add(1)
        p.add(1, part=1)
        p.add(2)
        await p.said()
        said = await p.answer(1)
        async with asyncio.timeout(10):
            while p.lockstep.settled < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert said + await p.said() == ["done 1", "done 1.1", "fetch", "compute 2", "push 2.0"]
        assert await p.answer(1, part=1) == [], "the step after has brought it along"
        assert await p.answer(2) == ["done 2"]

    await play(scene)


async def test_the_coordinator_is_told_of_steps_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that makes no steps would be taken to hang."""
    monkeypatch.setattr(lockstep, "TELL_S", 0.0)

    async def scene(p: Played) -> None:
        p.add(1)
        await p.said()
        await p.answer(1)
        assert [(request.done, request.wanted, request.wait_s) for request in p.asked] == [(1, 0, 0.0)]
        p.add(2)
        p.reply.set_result(2)
        assert await p.said() == ["fetch", "compute 2", "push 2.0"]

    await play(scene)


def test_the_place_of_a_batch() -> None:
    task = TrainTask(1, 0, 0, 10, 0.0, 0.0, step=11, part=1, batches=(3, 2, 2))
    assert [place_of(task, number) for number in range(2)] == [(11, 1, 3), (12, 1, 3)]
    task = TrainTask(1, 0, 0, 10, 0.0, 0.0, step=11, part=0, batches=(3, 2, 2))
    assert place_of(task, 2) == (13, 0, 1)

"""The lead has all members make the same part of a step, and a part is answered when all their pushes are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.kernels.partition.program import Row
from adamctl.roles.ps.client.parameter_client import Place
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.lead import Lead
from adamctl.roles.worker.partition.links import NeighbourError
from adamctl.roles.worker.partition.steps import GroupSteps
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.wire.messages import (
    FlightReport,
    GroupMember,
    Message,
    PartDoneRequest,
    PartStepRequest,
    PartTaskRequest,
    TrainTask,
)
from tests.roles.worker.partition.test_lead import Asked

MEMBERS = tuple(GroupMember(f"w{number}", number, "here", ()) for number in range(2))
GROUP = Group("job", 4, 0, MEMBERS, "plan", 2, 2)
TASK = TrainTask(9, 0, 10, 25, 0.0, 0.1, 31, 1, (3, 3))
PLACE = Place(32, 1, 2)


class Pushes(Downpour):
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def fetch(self) -> None:
        self.log.append("fetch")

    def push(self, slot: Any, place: Place | None = None, channel: int = 0) -> Any:
        self.log.append((slot, place, channel))
        return asyncio.ensure_future(self.answer)


class Played:
    """A lead with one other member, whose answers are the test's."""

    def __init__(self) -> None:
        self.others, self.told = [1], list[Message]()
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failures, self.done = list[BaseException](), list[BatchDone]()
        self.flights = list[Flight]()
        self.downpour = Pushes()
        self.lead = Lead(GROUP, self, 0, self.failures.append)  # type: ignore[arg-type]
        self.lead.engine = SimpleNamespace(  # type: ignore[assignment]
            downpour=self.downpour, submit=self.flights.append, accrued=lambda flight: f"slot of {flight}"
        )
        self.lead.takes(self.done.append)
        self.steps = GroupSteps(self.lead)

    async def tell(self, partition: int, message: Message, deadline_s: float = 0.0) -> None:
        self.told.append(message)
        if isinstance(message, PartStepRequest):
            await self.answer

    def submit(self, examples: int = 5) -> None:
        images, labels = np.zeros((examples, 1), np.float32), np.arange(examples, dtype=np.int32)
        self.steps.submit(Batch(TASK, images, labels, 0.5, 0.0, None, 77), PLACE, 3)

    def finish(self, flight: Flight) -> None:
        found = Row(loss=0.1 * flight.number, correct=1)
        self.lead.flight_done(FlightDone(flight, found, 1.0, 0.0))
        report = FlightReport(flight.number, 0.0, 0, 2.0, 0.5)
        self.lead.handle(Asked(PartDoneRequest(4, 1, (report,))))  # type: ignore[arg-type]


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_part_of_a_step_is_cut_into_flights_and_told_once() -> None:
    p = Played()
    p.steps.announce(TASK)
    await p.steps.fetch()
    p.submit()
    await soon()
    assert p.told == [PartTaskRequest(4, 0, (TASK,)), PartStepRequest(4, 1, TASK, 1, 3, True)]
    parts = [flight.batch for flight in p.flights]
    assert [flight.number for flight in p.flights] == [1, 2, 3]
    assert [(part.first, part.labels.tolist(), part.whole, part.key) for part in parts] == [
        (0, [0, 1], 5, 77), (2, [2, 3], 5, 77), (4, [4], 5, 77),
    ]  # fmt: skip
    assert [part.is_last for part in parts] == [False, False, True]
    p.steps.over(TASK)
    p.submit()
    await soon()
    assert p.told[-1] == PartStepRequest(4, 4, TASK, 1, 3, False, (9,)), "weights stay until they are fetched again"
    p.submit()
    await soon()
    assert p.told[-1] == PartStepRequest(4, 7, TASK, 1, 3, False)


async def test_a_part_is_done_when_all_its_flights_are_and_adds_up_what_they_found_in_their_order() -> None:
    p = Played()
    p.submit()
    for number in (2, 0, 1):
        assert not p.done
        p.finish(p.flights[number])
    (done,) = p.done
    assert len(done.batch.labels) == 5 and done.loss_sum == 0.0 + 0.1 * 1 + 0.1 * 2 + 0.1 * 3
    assert (done.correct, done.compute_s) == (3, 6.0)
    assert done.actions is not None and str(done.actions.push) == "slot of 3"


@pytest.mark.parametrize("slower", ["lead", "member"])
async def test_a_push_is_answered_when_all_members_are(slower: str) -> None:
    p = Played()
    p.submit()
    push = p.steps.push("slot", PLACE, 3)  # type: ignore[arg-type]
    first, last = (p.answer, p.downpour.answer) if slower == "lead" else (p.downpour.answer, p.answer)
    first.set_result(True)  # type: ignore[arg-type]
    await soon()
    assert not push.done() and p.downpour.log == [("slot", PLACE, 3)]
    last.set_result(True)  # type: ignore[arg-type]
    assert await push


async def test_a_member_that_does_not_answer_ends_the_group() -> None:
    p = Played()
    p.submit()
    push = p.steps.push("slot", PLACE, 3)  # type: ignore[arg-type]
    p.downpour.answer.set_result(True)
    p.answer.set_exception(NeighbourError("gone", 1))
    assert not await push
    assert [str(failure) for failure in p.failures] == ["gone"]

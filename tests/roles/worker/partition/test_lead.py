"""The lead counts a batch when every member has finished it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from adamctl.kernels.partition.program import Row
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.lead import Lead, added
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Empty,
    EvaluateTask,
    FlightReport,
    GroupMember,
    Message,
    PartDoneRequest,
    PartGrantRequest,
    PartReadyRequest,
    PartTaskRequest,
    TrainTask,
)

MEMBERS = tuple(GroupMember(f"w{number}", number, "here", ()) for number in range(3))
GROUP = Group("job", 4, 0, MEMBERS, "plan", 2, 2)


class Links:
    transports: dict[int, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.others, self.told = [1, 2], list[tuple[int, Message]]()

    async def tell(self, partition: int, message: Message, deadline_s: float = 0.0) -> None:
        self.told.append((partition, message))


class Engine:
    def __init__(self) -> None:
        self.flights, self.granted = list[Flight](), 0

    def submit(self, flight: Flight) -> None:
        self.flights.append(flight)

    def grant(self, flight: int) -> None:
        self.granted = flight

    def told(self) -> dict[str, Any]:
        return {"partition": 0, "flights": len(self.flights)}


class Asked:
    def __init__(self, message: Message) -> None:
        self.message, self.answer = message, Any

    def reply(self, message: Message) -> None:
        self.answer = message  # type: ignore[assignment]

    def fail(self, code: int, text: str) -> None:
        self.answer = code  # type: ignore[assignment]


def led() -> tuple[Lead, Links, Engine, list[BatchDone]]:
    links, engine, done = Links(), Engine(), list[BatchDone]()
    lead = Lead(GROUP, links, 1, lambda failure: None)  # type: ignore[arg-type]
    lead.engine = engine  # type: ignore[assignment]
    lead.takes(done.append)
    return lead, links, engine, done


def batch(task: TrainTask) -> Batch:
    return Batch(task, np.zeros((2, 1), np.float32), np.zeros(2, np.int32), 0.5, 0.25, None, 9)


def own(number: int, flight: Flight) -> FlightDone:
    return FlightDone(flight, Row(loss=0.0, correct=0), 0.1, 9.0, idle_s=0.25)  # type: ignore[arg-type]


async def test_a_task_is_announced_once_and_its_flights_are_numbered_on() -> None:
    lead, links, engine, _ = led()
    one, two = TrainTask(1, 0, 0, 4, 0.0, 0.1), TrainTask(2, 0, 4, 8, 0.1, 0.2)
    for task in (one, one, two):
        lead.submit(batch(task))
    await asyncio.sleep(0)
    assert [flight.number for flight in engine.flights] == [1, 2, 3]
    assert engine.flights[0].batch.key == 9 and engine.flights[0].rate == 0.25
    assert sorted(links.told, key=lambda told: told[0]) == [
        (1, PartTaskRequest(4, 1, (one,))), (1, PartTaskRequest(4, 3, (two,))),
        (2, PartTaskRequest(4, 1, (one,))), (2, PartTaskRequest(4, 3, (two,))),
    ]  # fmt: skip


async def test_a_batch_is_done_when_all_have_finished_and_its_loss_is_the_reporters() -> None:
    lead, _, engine, done = led()
    lead.submit(batch(TrainTask(1, 0, 0, 4, 0.0, 0.1)))
    await asyncio.sleep(0)
    lead.flight_done(own(1, engine.flights[0]))
    asked = Asked(PartDoneRequest(4, 1, (FlightReport(1, 2.5, 1, 0.2, 0.1),), 7, (1, 2), (3,)))
    lead.handle(asked)  # type: ignore[arg-type]
    assert asked.answer == Empty() and not done
    lead.handle(Asked(PartDoneRequest(4, 1, (FlightReport(1, 9.0, 9, 0.2, 0.1),))))  # type: ignore[arg-type]
    assert not done, "a report that comes twice counts once"
    lead.handle(Asked(PartDoneRequest(4, 2, (FlightReport(1, 0.0, 0, 0.3, 0.1),), 1, (1, 0, 5))))  # type: ignore[arg-type]
    assert [(one.loss_sum, one.correct, one.compute_s) for one in done] == [(2.5, 1, 0.3)]
    assert done[0].wait_s == 0.25, "the longest wait for examples"
    counts = lead.take_counts()
    assert (counts.updates, counts.staleness, counts.ages) == (8, (2, 2, 5), (3,))
    assert lead.take_counts().updates == 0


async def test_what_each_partition_computes_is_counted_for_flights_that_train() -> None:
    lead, _, engine, _ = led()
    engine.open_flights = {}  # type: ignore[attr-defined]
    lead.submit(batch(TrainTask(1, 0, 0, 4, 0.0, 0.1)))
    lead.submit(batch(EvaluateTask(2, 1, "test", 0, 2)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    for number, flight in enumerate(engine.flights, 1):
        lead.flight_done(own(number, flight))
        for partition, seconds in ((1, 0.2), (2, 0.4)):
            told = PartDoneRequest(4, partition, (FlightReport(number, 0.0, 0, seconds, 0.1),))
            lead.handle(Asked(told))  # type: ignore[arg-type]
    assert lead.status()["computed"] == [(0.1, 2), (0.2, 2), (0.4, 2)]


async def test_the_others_are_told_once_of_all_that_is_granted_and_a_step_is_done_when_all_have_finished_it() -> None:
    lead, links, engine, _ = led()
    changes = list[int]()
    grants = lead.paced(lambda: changes.append(grants.stand().done))
    grants.allow(2, 0)
    for _ in range(3):
        lead.submit(batch(TrainTask(1, 0, 0, 6, 0.0, 0.1)))
    assert engine.granted == 2
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [told for told in links.told if isinstance(told[1], PartGrantRequest)] == [
        (1, PartGrantRequest(4, 2)), (2, PartGrantRequest(4, 2)),
    ]  # fmt: skip
    lead.flight_done(own(1, engine.flights[0]))
    lead.handle(Asked(PartDoneRequest(4, 1, (FlightReport(1, 2.5, 1, 0.2, 0.1),))))  # type: ignore[arg-type]
    assert grants.stand() == (0, 3, 0)
    lead.handle(Asked(PartDoneRequest(4, 2, (FlightReport(1, 2.5, 1, 0.2, 0.1),))))  # type: ignore[arg-type]
    assert grants.stand() == (1, 3, 0) and changes == [0, 1]


@pytest.mark.parametrize("epoch", [3, 5])
async def test_requests_of_other_groups_are_refused(epoch: int) -> None:
    lead, _, _, _ = led()
    for message in (PartReadyRequest(epoch, 1), PartDoneRequest(epoch, 1, ())):
        asked = Asked(message)
        lead.handle(asked)  # type: ignore[arg-type]
        assert asked.answer == ErrorCode.STALE_GROUP


def test_histograms_of_any_length_are_added() -> None:
    assert added((1, 2), (1, 0, 3)) == (2, 2, 3)
    assert added((), ()) == ()

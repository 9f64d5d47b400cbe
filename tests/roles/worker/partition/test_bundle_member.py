"""A member does what its lead says of bundles, with examples that it reads by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.errors import RunFailedError
from adamctl.kernels.partition.program import Row
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.worker.core.bundle_work import Pull
from adamctl.roles.worker.core.open_flights import Standing
from adamctl.roles.worker.partition import bundle_member
from adamctl.roles.worker.partition.bundle_member import BundleMember
from adamctl.roles.worker.partition.flight_engine import Counts
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Empty,
    GroupMember,
    Message,
    PartBundleReply,
    PartBundleRequest,
    PartDoneRequest,
    PartExamplesRequest,
    PartPortionsRequest,
    PartPullReply,
    PartPullRequest,
    PartReadyRequest,
    PartStepRequest,
    PartTaskRequest,
    TrainTask,
)
from tests.roles.worker.partition.test_lead import Asked

GROUP = Group("job", 4, 1, tuple(GroupMember(f"w{one}", 1, "here", ()) for one in range(2)), "plan", 4, 2)


class Engine:
    """Takes flights, pushes and pulls. `refused`, `lost`: what servers answer."""

    pushes = 0

    def __init__(self) -> None:
        self.flights, self.expected, self.log = list[Flight](), dict[int, int](), list[Any]()
        self.refused, self.lost = dict[int, int](), list[int]()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def told(self) -> dict[str, Any]:
        return {}

    def take_counts(self) -> Counts:
        return Counts()

    def standing(self, number: int) -> Standing:
        return Standing("works")

    def expect(self, bundle: int, flights: list[int]) -> None:
        self.expected |= dict.fromkeys(flights, bundle)

    def submit(self, flight: Flight) -> None:
        assert flight.number in self.expected, "its bundle is known before it begins"
        self.flights.append(flight)

    async def push(self, *of: Any) -> dict[int, int]:
        self.log.append(of)
        return self.refused

    def forget(self, bundle: int) -> None:
        self.log.append(bundle)

    async def pull(self, pull: Pull) -> list[int]:
        self.log.append(pull)
        return self.lost


class Data:
    """Examples whose labels are their numbers; each range comes when its event is set."""

    def __init__(self) -> None:
        self.events: dict[int, asyncio.Event] = {}
        self.reads, self.fails = list[tuple[int, int, int]](), False

    async def read(self, dataset: Any, split: str, pass_number: int, start: int, stop: int, into: Any) -> None:
        assert split == "train"
        self.reads.append((pass_number, start, stop))
        await self.events.setdefault(start, asyncio.Event()).wait()
        if self.fails:
            raise RunFailedError("no data server is left")
        into[0][:], into[1][:] = 0, np.arange(start, stop)


class Links:
    transports: dict[int, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.told = list[Message]()

    async def tell(self, partition: int, message: Message, deadline_s: float = 0.0) -> None:
        self.told.append(message)


class Played:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bundle_member, "BundleEngine", Engine)
        self.engine, self.data, self.links = Engine(), Data(), Links()
        dataset: Any = SimpleNamespace(input_shape=(1,), form=ExampleForm(1))
        of: Any = (GROUP, self.links, None, dataset, self.data, logging.getLogger("test_bundle_member"), 1)
        self.member = BundleMember(*of)
        self.member.engine = self.engine  # type: ignore[assignment]

    def ask(self, message: Message) -> Asked:
        asked = Asked(message)
        self.member.handle(asked)  # type: ignore[arg-type]
        return asked

    def arrive(self, *starts: int) -> None:
        for start in starts:
            self.data.events.setdefault(start, asyncio.Event()).set()

    def finish(self, number: int) -> None:
        found = Row(loss=0.5, correct=1)
        flight = next(one for one in self.engine.flights if one.number == number)
        self.member.flight_done(FlightDone(flight, found, 1.0, 0.0))


@asynccontextmanager
async def running(p: Played) -> AsyncIterator[asyncio.Task[str]]:
    task = asyncio.create_task(p.member.run(asyncio.Event()))
    await soon()
    assert p.links.told == [PartReadyRequest(4, 1)]
    yield task
    p.member.end("over")
    await asyncio.gather(task, return_exceptions=True)


async def soon() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_portions_become_flights_in_the_order_of_their_numbers_whichever_examples_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = Played(monkeypatch)
    async with running(p):
        assert p.ask(PartExamplesRequest(4, ((100, 110), (20, 28)))).answer == Empty()
        await soon()
        assert p.data.reads == [(0, 100, 110), (0, 20, 28)], "read before they are needed"
        p.ask(PartPortionsRequest(4, 1, 1, (100, 110), 0, 10))
        p.ask(PartPortionsRequest(4, 4, 4, (20, 28), 4, 8))
        p.arrive(20)
        await soon()
        assert not p.engine.flights
        p.arrive(100)
        await soon()
        assert [(one.number, one.batch.labels.tolist(), one.batch.share) for one in p.engine.flights] == [
            (1, [100, 101, 102, 103], 1), (2, [104, 105, 106, 107], 1), (3, [108, 109], 0.5), (4, [24, 25, 26, 27], 1),
        ]  # fmt: skip
        assert p.engine.expected == {1: 1, 2: 1, 3: 1, 4: 4}
        assert p.member.status()["state"] == "evaluating"
        for number in (1, 2, 4, 3):
            p.finish(number)
        await soon()
        assert p.member.status()["state"] == "waiting" and p.member.flights_done == 4
        told = [report.number for one in p.links.told if isinstance(one, PartDoneRequest) for report in one.flights]
        assert sorted(told) == [1, 2, 3, 4]


async def test_examples_stay_until_they_are_to_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Played(monkeypatch)
    async with running(p):
        p.ask(PartExamplesRequest(4, ((0, 4), (4, 8))))
        p.arrive(0)
        await soon()
        p.ask(PartPortionsRequest(4, 1, 1, (0, 4), 0, 4))
        p.ask(PartPortionsRequest(4, 2, 2, (0, 4), 0, 4))
        await soon()
        assert len(p.engine.flights) == 2 and len(p.data.reads) == 2
        p.ask(PartExamplesRequest(4, (), ((0, 4), (4, 8))))
        assert not p.member._examples
        p.ask(PartExamplesRequest(4, ((0, 4),)))
        await soon()
        assert p.data.reads[2:] == [(0, 0, 4)]


async def test_a_bundle_is_pushed_or_forgotten_as_the_lead_says(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Played(monkeypatch)
    async with running(p):
        p.engine.refused = {3: ErrorCode.NOT_FINITE}
        pushed, forgotten = p.ask(PartBundleRequest(4, 7, 2, 0, 0.5)), p.ask(PartBundleRequest(4, 9))
        await soon()
        assert pushed.answer == PartBundleReply({3: ErrorCode.NOT_FINITE}) and forgotten.answer == PartBundleReply()
        assert p.engine.log == [(7, 2, 0, 0.5), 9]


@pytest.mark.parametrize("lost", [[], [2, 5]])
async def test_a_pull_says_which_buckets_have_lost_the_evaluation(
    monkeypatch: pytest.MonkeyPatch, lost: list[int]
) -> None:
    p = Played(monkeypatch)
    async with running(p):
        p.engine.lost = lost
        asked = p.ask(PartPullRequest(4, 6, "t"))
        await soon()
        assert asked.answer == PartPullReply(tuple(lost)) and p.engine.log == [Pull(6, "t")]


async def test_what_is_no_part_of_a_batch_algorithm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Played(monkeypatch)
    task = TrainTask(1, 0, 0, 8, 0.0, 0.0)
    async with running(p):
        assert p.ask(PartTaskRequest(4, 1, (task,))).answer == ErrorCode.BAD_MESSAGE
        assert p.ask(PartStepRequest(4, 1, task, 0, 0, False)).answer == ErrorCode.BAD_MESSAGE
        for message in (PartExamplesRequest(5), PartPullRequest(3, 1, "t"), PartBundleRequest(5, 1)):
            assert p.ask(message).answer == ErrorCode.STALE_GROUP
        assert not p.engine.log and not p.member._examples


async def test_examples_that_cannot_be_read_end_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Played(monkeypatch)
    async with running(p) as task:
        p.data.fails = True
        p.ask(PartExamplesRequest(4, ((0, 4),)))
        p.arrive(0)
        p.ask(PartPortionsRequest(4, 1, 1, (0, 4), 0, 4))
        with pytest.raises(RunFailedError, match="no data server is left"):
            await task

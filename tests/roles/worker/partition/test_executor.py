"""The lead makes flights of portions, little by little, and hands a bundle back when all members have done it."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.kernels.partition.program import Row
from adamctl.roles.worker.core.bundle_work import Held, Pull, portions_of
from adamctl.roles.worker.core.example_memory import Span
from adamctl.roles.worker.partition.executor import GroupExecutor
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.lead import Lead
from adamctl.roles.worker.partition.links import NeighbourError
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.roles.worker.sandblaster.threads import Bundle, BundleDone
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    BundleName,
    BundleTask,
    EvaluateTask,
    FlightReport,
    GroupMember,
    Message,
    PartBundleReply,
    PartBundleRequest,
    PartDoneRequest,
    PartExamplesRequest,
    PartPortionsRequest,
    PartPullReply,
    PartPullRequest,
    PartTaskRequest,
)
from tests.roles.worker.partition.test_lead import Asked

PORTION, FLIGHTS = 4, 2
GROUP = Group("job", 4, 0, tuple(GroupMember(f"w{one}", 1, "here", ()) for one in range(2)), "plan", PORTION, FLIGHTS)


class Played:
    """A lead with one other member, whose answers are the test's."""

    def __init__(self) -> None:
        self.others, self.told, self.transports = [1], list[Message](), {}  # type: ignore[var-annotated]
        self.answer: Message | NeighbourError = PartBundleReply()
        self.flights, self.expected = list[Flight](), list[tuple[int, list[int]]]()
        self.forgotten, self.pushed, self.failures = list[int](), list[Any](), list[BaseException]()
        self.refused, self.lost = dict[int, int](), list[int]()
        self.lead: Lead[Any] = Lead(GROUP, self, 0, self.failures.append)  # type: ignore[arg-type]
        self.lead.engine = SimpleNamespace(
            submit=self.flights.append, forget=self.forgotten.append, push=self.push, pull=self.pull,
            expect=lambda bundle, flights: self.expected.append((bundle, list(flights))),
        )  # fmt: skip
        self.executor = GroupExecutor(self.lead, FLIGHTS)
        self.done = list[BundleDone]()
        self.executor.takes(self.done.append)

    async def tell(self, partition: int, message: Message, deadline_s: float = 0.0) -> None:
        await self.ask(partition, message, deadline_s)

    async def ask(self, partition: int, message: Message, deadline_s: float = 0.0) -> Message:
        self.told.append(message)
        if isinstance(self.answer, NeighbourError):
            raise self.answer
        return self.answer

    async def push(self, *of: Any) -> dict[int, int]:
        self.pushed.append(of)
        return dict(self.refused)

    async def pull(self, pull: Pull) -> list[int]:
        return list(self.lost)

    def submit(self, number: int, examples: int) -> Held:
        task = BundleTask(BundleName(3, 0, number), 100 * number, 100 * number + examples, 0.25, "t")
        held = Held(task)
        images = np.arange(examples, dtype=np.float32).reshape(-1, 1)
        self.executor.submit(Bundle(held, portions_of(task, PORTION), images, np.arange(examples, dtype=np.int32)))
        return held

    def finish(self, number: int, loss: float = 0.0) -> None:
        found = Row(loss=loss, correct=1)
        self.lead.flight_done(FlightDone(self.flights[number - 1], found, 1.0, 0.0))
        report = FlightReport(number, 0.0, 0, 2.0, 0.5)
        self.lead.handle(Asked(PartDoneRequest(4, 1, (report,))))  # type: ignore[arg-type]


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_portions_become_flights_as_others_are_done_and_are_told_in_runs() -> None:
    p = Played()
    p.submit(0, 10)
    p.submit(5, 12)
    await soon()
    assert [flight.number for flight in p.flights] == [1, 2, 3, 4], "twice as many as can be open"
    assert p.told == [
        PartPortionsRequest(4, 1, 1, (0, 10), 0, 10), PartPortionsRequest(4, 4, 4, (500, 512), 0, 4),
    ]  # fmt: skip
    batches = [flight.batch for flight in p.flights]
    assert [(batch.labels.tolist(), batch.share) for batch in batches] == [
        ([0, 1, 2, 3], 1), ([4, 5, 6, 7], 1), ([8, 9], 0.5), ([0, 1, 2, 3], 1),
    ]  # fmt: skip
    assert all(flight.trains and not flight.rate for flight in p.flights)
    p.finish(2)
    p.finish(1)
    await soon()
    assert p.told[2:] == [
        PartPortionsRequest(4, 4, 5, (500, 512), 4, 8),
        PartPortionsRequest(4, 4, 6, (500, 512), 8, 12),
    ]
    assert p.expected == [(1, [1, 2, 3]), (4, [4]), (4, [5]), (4, [6])]
    assert not p.done


async def test_a_bundle_is_done_once_and_its_loss_is_summed_in_the_order_of_its_portions() -> None:
    losses = [0.1, 1e16, -1e16]
    found = set()
    for order in ((1, 2, 3), (3, 1, 2), (2, 3, 1)):
        p = Played()
        p.submit(0, 10)
        for number in order:
            assert not p.done
            p.finish(number, losses[number - 1])
        (done,) = p.done
        assert (done.gradient, done.compute_s, done.wait_s) == (1, 6.0, 1.5)
        assert p.executor.portions_done == 3
        found.add(done.loss_sum)
    assert found == {sum(losses)}


async def test_a_bundle_that_is_given_up_begins_no_more_flights_and_waits_for_those_it_has() -> None:
    p = Played()
    first, waiting = p.submit(0, 30), p.submit(1, 4)
    last = p.submit(2, 4)
    first.given_up = waiting.given_up = True
    for number in (1, 2, 3):
        p.finish(number)
        assert not [done for done in p.done if done.bundle.held is first]
    p.finish(4)
    assert [(done.bundle.held, done.gradient) for done in p.done] == [(waiting, 0), (first, 1)]
    assert [flight.number for flight in p.flights] == [1, 2, 3, 4, 5] and p.expected[-1] == (5, [5])
    p.executor.free(0)
    p.executor.free(1)
    p.finish(5)
    await soon()
    assert p.done[-1].bundle.held is last
    assert p.forgotten == [1] and p.told[-1] == PartBundleRequest(4, 1), "nothing was left of the other"


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_is_given_up_each_bundle_is_handed_back_once_and_its_sum_freed_once(seed: int) -> None:
    """Flights end in any order; numbers have no gaps, and no more are on their way than may be."""
    p, chance = Played(), Random(seed)
    helds, left, settled = list[Held](), set[int](), 0
    for step in range(200):
        if step < 80 and len(helds) - len(p.done) < 5 and chance.random() < 0.4:
            helds.append(p.submit(len(helds), chance.randint(1, 30)))
        if helds and chance.random() < 0.15:
            chance.choice(helds).given_up = True
        left = set(range(1, len(p.flights) + 1)) - finished(p)
        assert len(left) <= 2 * FLIGHTS and [flight.number for flight in p.flights] == list(
            range(1, len(p.flights) + 1)
        )
        if left and chance.random() < 0.7:
            p.finish(chance.choice(sorted(left)))
        for done in p.done[settled:]:
            if done.bundle.held.given_up:
                p.executor.free(done.gradient)
            else:
                await p.executor.push(done.bundle.held, done.gradient)
        settled = len(p.done)
    assert not left and sorted(done.bundle.held.task.name.bundle for done in p.done) == list(range(len(helds)))
    ended = [*p.forgotten, *(of[0] for of in p.pushed)]
    assert sorted(ended) == sorted({bundle for bundle, _ in p.expected})
    portions = [number for _, numbers in p.expected for number in numbers]
    assert portions == list(range(1, len(p.flights) + 1))


def finished(p: Played) -> set[int]:
    return {flight.number for flight in p.flights} - set(p.lead._flights)


async def test_all_members_push_with_the_same_weight_and_refusals_are_put_together() -> None:
    p = Played()
    held = p.submit(7, 10)
    p.refused, p.answer = {3: ErrorCode.NOT_FINITE}, PartBundleReply({5: ErrorCode.NO_VECTOR})
    assert await p.executor.push(held, 1) == {3: ErrorCode.NOT_FINITE, 5: ErrorCode.NO_VECTOR}
    weight = 0.25 * PORTION / 10
    assert p.pushed == [(1, 3, 7, weight)] and p.told[-1] == PartBundleRequest(4, 1, 3, 7, weight)


@pytest.mark.parametrize(
    ("own", "others", "lost"), [([], (), []), ([2], (), [2]), ([], (4,), [4]), ([2], (4,), [2, 4])]
)
async def test_parameters_are_there_when_all_members_have_them(
    own: list[int], others: tuple[int, ...], lost: list[int]
) -> None:
    p = Played()
    p.lost, p.answer = own, PartPullReply(others)
    assert await p.executor.pull(Pull(9, "t")) == lost
    assert p.told == [PartPullRequest(4, 9, "t")]


async def test_a_member_that_does_not_answer_ends_the_group() -> None:
    p = Played()
    held = p.submit(0, 4)
    p.answer = NeighbourError("gone", 1)
    for asking in (p.executor.pull(Pull(9, "t")), p.executor.push(held, 1)):
        with pytest.raises(NeighbourError, match="gone"):
            await asking
    assert [str(failure) for failure in p.failures][-2:] == ["gone", "gone"]


async def test_the_others_read_and_forget_what_the_lead_does() -> None:
    p = Played()
    p.executor.reads([Span(4, 8), Span(0, 2)], [Span(9, 12)])
    await soon()
    assert p.told == [PartExamplesRequest(4, ((4, 8), (0, 2)), ((9, 12),))]


async def test_held_out_examples_are_flights_of_their_own() -> None:
    p = Played()
    task = EvaluateTask(3, 1, "test", 20, 26)
    asking = asyncio.ensure_future(
        p.executor.evaluate(task, np.zeros((6, 1), np.float32), np.arange(6, dtype=np.int32))
    )
    await soon()
    assert p.told == [PartTaskRequest(4, 1, (), (task,))] and [flight.trains for flight in p.flights] == [False, False]
    p.finish(2, 5.0)
    p.finish(1, 2.5)
    assert [(one.loss_sum, one.correct) for one in await asking] == [(2.5, 1), (5.0, 1)]
    assert p.executor.portions_done == 2, "they are progress"

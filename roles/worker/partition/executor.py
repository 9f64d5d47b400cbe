"""The lead's side of a group that computes bundles together: portions are flights, and every member pushes its part.

For the session of a batch algorithm it stands for the compute threads of a whole replica. Portions become flights only
as others are done, so that little is computed in vain of a bundle that is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.program import Batch as FlightBatch
from adamctl.model.tally import Tally
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.core.batches import parts_of
from adamctl.roles.worker.core.bundle_work import Held, Pull, weight_of
from adamctl.roles.worker.core.example_memory import Span
from adamctl.roles.worker.partition.bundle_engine import BundleEngine
from adamctl.roles.worker.partition.lead import Lead
from adamctl.roles.worker.partition.taking import portion_range
from adamctl.roles.worker.sandblaster.threads import Bundle, BundleDone
from adamctl.wire.messages import (
    EvaluateTask,
    PartBundleReply,
    PartBundleRequest,
    PartExamplesRequest,
    PartPortionsRequest,
    PartPullReply,
    PartPullRequest,
)

AHEAD = 2
"""Times as many flights as can be open: so many have numbers and are not done everywhere."""
PULL_S = 120.0
PUSH_S = 120.0
"""More than a push may take at a member: it says itself why it failed."""


@dataclass(eq=False)
class _Open:
    """A bundle that is on its way.

    Attributes:
        name: its first flight; 0: none has begun.
        begun: portions that are flights, or have been.
        losses: of portions that all members have done, by flight.
    """

    bundle: Bundle
    name: int = 0
    begun: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    compute_s: float = 0.0
    wait_s: float = 0.0

    @property
    def is_begun(self) -> bool:
        """Whether no more flights of it will begin."""
        return self.bundle.held.given_up or self.begun == len(self.bundle.portions)


class GroupExecutor:
    """See the module. Everything runs on the event loop."""

    def __init__(self, lead: Lead[BundleEngine], flights: int) -> None:
        """`flights`: how many may be open."""
        self._lead, self.parallel, self._ahead = lead, flights, AHEAD * flights
        self.portions_done = self._outstanding = 0
        self._waiting: deque[_Open] = deque()
        self._done: Callable[[BundleDone], None] = lambda done: None

    def takes(self, done: Callable[[BundleDone], None]) -> None:
        self._done = done

    def start(self) -> None:
        """The group has begun."""

    def reads(self, spans: Sequence[Span], dropped: Sequence[Span]) -> None:
        read, forget = (tuple((span.start, span.stop) for span in each) for each in (spans, dropped))
        self._lead.tell_others(PartExamplesRequest(self._lead.epoch, read, forget))

    async def pull(self, pull: Pull) -> Collection[int]:
        request = PartPullRequest(self._lead.epoch, pull.evaluation, pull.at)
        lost, told = await asyncio.gather(self._lead.engine.pull(pull), self._lead.answers_of(request, PULL_S))
        for reply in told:
            assert isinstance(reply, PartPullReply)
            lost += [bucket for bucket in reply.lost_buckets if bucket not in lost]
        return lost

    # --- portions -----------------------------------------------------------------------------------------------------

    def submit(self, bundle: Bundle) -> None:
        self._waiting.append(_Open(bundle))
        self._go_on()

    def _go_on(self) -> None:
        """Makes flights of the next portions, as far as there is room."""
        while self._waiting:
            one = self._waiting[0]
            if one.is_begun:
                self._waiting.popleft()
                self._end_if_done(one)
            elif (room := self._ahead - self._outstanding) > 0:
                self._begin(one, min(room, len(one.bundle.portions) - one.begun))
            else:
                return

    def _begin(self, one: _Open, count: int) -> None:
        """Tells all members of the next portions of a bundle."""
        lead, bundle, first = self._lead, one.bundle, self._lead.next_flight
        one.name = one.name or first
        portions = bundle.portions[one.begun : one.begun + count]
        one.begun += count
        self._outstanding += count
        span = bundle.held.span
        lead.engine.expect(one.name, range(first, first + count))
        request = PartPortionsRequest(
            lead.epoch, one.name, first, (span.start, span.stop), portions[0].start, portions[-1].stop
        )
        lead.tell_others(request)
        for number, portion in enumerate(portions, first):
            part = slice(portion.start, portion.stop)
            task = portion_range(one.name, span.start + portion.start, span.start + portion.stop)
            batch = Batch(task, bundle.images[part], bundle.labels[part])
            made = FlightBatch(batch.images, batch.labels, 0, lead.batch)
            lead.begin_flight(batch, made, partial(self._portion_done, one, number))

    def _portion_done(self, one: _Open, flight: int, done: BatchDone) -> None:
        self._outstanding -= 1
        self.portions_done += 1
        one.losses[flight] = done.loss_sum
        one.compute_s += done.compute_s
        one.wait_s += done.wait_s
        if one.is_begun and one not in self._waiting:
            self._end_if_done(one)
        self._go_on()

    def _end_if_done(self, one: _Open) -> None:
        """Hands a bundle back when all of its flights are done; its loss is summed in the order of its portions."""
        if len(one.losses) == one.begun:
            loss_sum = sum(loss for _, loss in sorted(one.losses.items()))
            self._done(BundleDone(one.bundle, one.name, float(loss_sum), one.compute_s, one.wait_s))

    # --- bundles ------------------------------------------------------------------------------------------------------

    async def push(self, held: Held, gradient: int) -> dict[int, int]:
        lead, name, weight = self._lead, held.task.name, weight_of(held.task, self._lead.batch)
        request = PartBundleRequest(lead.epoch, gradient, name.evaluation, name.bundle, weight)
        refused, told = await asyncio.gather(
            lead.engine.push(gradient, name.evaluation, name.bundle, weight), lead.answers_of(request, PUSH_S)
        )
        for reply in told:
            assert isinstance(reply, PartBundleReply)
            refused |= reply.refused
        return refused

    def free(self, gradient: int) -> None:
        if gradient:
            self._lead.engine.forget(gradient)
            self._lead.tell_others(PartBundleRequest(self._lead.epoch, gradient))

    # --- held-out examples --------------------------------------------------------------------------------------------

    async def snapshot(self) -> None:
        await self._lead.engine.pull_snapshot()

    async def evaluate(self, task: EvaluateTask, images: Array, labels: Answers) -> list[Tally]:
        loop, found = asyncio.get_running_loop(), list[asyncio.Future[BatchDone]]()
        for start, stop in parts_of(len(labels), self._lead.batch):
            found.append(loop.create_future())
            batch = Batch(task, images[start:stop], labels[start:stop])
            self._lead.submit(batch, partial(self._part_evaluated, found[-1]))
        return [
            Tally(len(done.batch.labels), done.loss_sum, done.correct, done.sums)
            for done in await asyncio.gather(*found)
        ]

    def _part_evaluated(self, found: asyncio.Future[BatchDone], done: BatchDone) -> None:
        self.portions_done += 1
        found.set_result(done)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def halt(self) -> None:
        self._waiting.clear()
        await self._lead.engine.halt()

    def close(self) -> None:
        """The group's memory is freed with the group."""

    def status(self) -> dict[str, object]:
        return self._lead.status()

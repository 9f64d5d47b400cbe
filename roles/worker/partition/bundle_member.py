"""A member's part in a group that computes bundles of a batch algorithm, unless it leads (DistBelief 4.2, Sandblaster).

The lead says which examples to read and to forget, when to pull, which portions are flights, and when to push.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.operation import Array
from adamctl.net.transport import Request
from adamctl.roles.data.client.data_client import new_arrays
from adamctl.roles.worker.core.bundle_work import PASS, READS_MAX, Pull
from adamctl.roles.worker.core.example_memory import Span
from adamctl.roles.worker.partition.bundle_engine import BundleEngine
from adamctl.roles.worker.partition.member_session import MemberSession, Range
from adamctl.roles.worker.partition.taking import flights_of_portions, portion_range
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Empty,
    PartBundleReply,
    PartBundleRequest,
    PartExamplesRequest,
    PartPortionsRequest,
    PartPullReply,
    PartPullRequest,
    PartStepRequest,
    PartTaskRequest,
)


@dataclass
class BundleMember(MemberSession):
    """See the module. Everything runs on the event loop."""

    _examples: dict[Span, asyncio.Task[tuple[Array, Answers]]] = field(default_factory=dict)
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READS_MAX))

    async def run(self, stopping: asyncio.Event) -> str:
        """As `MemberSession.run`."""
        try:
            return await super().run(stopping)
        finally:
            self._forget_examples(list(self._examples))

    def status(self) -> dict[str, object]:
        return {**super().status(), "state": "evaluating" if self._ranges else "waiting"}

    def handle(self, request: Request) -> None:
        """Serves the lead."""
        message = request.message
        if getattr(message, "group_epoch", 0) != self.group.epoch:
            super().handle(request)
        elif isinstance(message, PartExamplesRequest):
            self._forget_examples([Span(*one) for one in message.forget])
            for one in message.read:
                self._examples[Span(*one)] = asyncio.create_task(self._read(Span(*one)))
            request.reply(Empty())
        elif isinstance(message, PartPullRequest):
            self._spawn(self._pull(request, Pull(message.evaluation, message.at)))
        elif isinstance(message, PartPortionsRequest):
            self._spawn(self._take_portions(message))
            request.reply(Empty())
        elif isinstance(message, PartBundleRequest):
            self._spawn(self._end_bundle(request, message))
        elif isinstance(message, PartStepRequest) or (isinstance(message, PartTaskRequest) and message.train):
            request.fail(ErrorCode.BAD_MESSAGE, "this run has a batch algorithm; expected portions of bundles")
        else:
            super().handle(request)

    async def _read(self, span: Span) -> tuple[Array, Answers]:
        images, labels = new_arrays(span.examples, self.dataset.input_shape, self.dataset.form)
        async with self._reading:
            await self.data.read(self.dataset, "train", PASS, span.start, span.stop, (images, labels))
        return images, self.dataset.form.answers(images, labels)

    def _forget_examples(self, spans: list[Span]) -> None:
        for span in spans:
            reading = self._examples.pop(span, None)
            if reading is not None:
                reading.cancel()

    async def _pull(self, request: Request, pull: Pull) -> None:
        lost = await self._bundle_engine.pull(pull)
        request.reply(PartPullReply(tuple(lost)))

    async def _take_portions(self, message: PartPortionsRequest) -> None:
        """Makes flights of portions, when their examples are there."""
        engine, first, span = self._bundle_engine, message.first_flight, Span(*message.range)
        examples = await asyncio.shield(self._examples[span])
        images, labels = (one[message.start : message.stop] for one in examples)
        flights = flights_of_portions(images, labels, first, self.group.batch)
        task = portion_range(message.bundle, span.start + message.start, span.start + message.stop)
        self._training += 1
        self._ranges[first + len(flights) - 1] = Range(task, None, len(flights))
        engine.expect(message.bundle, [flight.number for flight in flights])
        for flight in self._in_order.add(first, flights):
            engine.submit(flight)

    async def _end_bundle(self, request: Request, message: PartBundleRequest) -> None:
        engine, refused = self._bundle_engine, dict[int, int]()
        if message.number < 0:
            engine.forget(message.bundle)
        else:
            refused = await engine.push(message.bundle, message.evaluation, message.number, message.weight)
        request.reply(PartBundleReply(refused))

    @property
    def _bundle_engine(self) -> BundleEngine:
        assert isinstance(self.engine, BundleEngine)
        return self.engine

"""A member's part in one group, unless it leads: flights as the lead says, its own pushes and fetches.

It takes ranges from the lead, reads their examples by itself, and tells the lead what it has finished. It ends when the
lead says that the run is over, or the coordinator that the group is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any

from adamctl.config.experiment import Experiment
from adamctl.errors import RunFailedError
from adamctl.net.transport import Request
from adamctl.roles.data.client.data_client import Batch as Examples
from adamctl.roles.data.client.data_client import DataClient, DataSet
from adamctl.roles.worker.core.batches import Task
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.lockstep import place_of
from adamctl.roles.worker.partition.engine import PartitionEngine
from adamctl.roles.worker.partition.flight_engine import FlightEngine
from adamctl.roles.worker.partition.group import LEAD, Group
from adamctl.roles.worker.partition.links import Links, ways
from adamctl.roles.worker.partition.taking import InOrder, Rates, flights_of_step, flights_of_task
from adamctl.roles.worker.partition.threads import FlightDone
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Empty,
    FlightReport,
    PartDoneRequest,
    PartEndRequest,
    PartFlushRequest,
    PartGrantRequest,
    PartReadyRequest,
    PartStatusReply,
    PartStatusRequest,
    PartStepRequest,
    PartTaskRequest,
    TrainTask,
)

READY_S = 120.0
"""How long the lead may take to answer that this member is ready; it compiles meanwhile, too."""
REPORT_S = 60.0


@dataclass
class Range:
    """A range that this member works on, or a batch of one. `examples`: to be released then, if any."""

    task: Task
    examples: Examples | None
    left: int


@dataclass
class MemberSession:
    """See the module. Everything runs on the event loop."""

    group: Group
    links: Links
    experiment: Experiment
    dataset: DataSet
    data: DataClient
    log: logging.Logger
    threads: int
    engine: FlightEngine | None = None
    _ranges: dict[int, Range] = field(default_factory=dict)  # by their last flight
    _to_come: dict[int, asyncio.Task[Examples]] = field(default_factory=dict)  # of ranges in step, by their task
    _steps: dict[int, Request] = field(default_factory=dict)  # by their last flight
    _in_order: InOrder = field(default_factory=InOrder)
    _reports: list[FlightReport] = field(default_factory=list)
    _reporting: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _failure: BaseException | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _training: int = 0
    flights_done: int = 0
    cause: str = ""

    async def run(self, stopping: asyncio.Event) -> str:
        """Works until the group ends or `stopping` is set; returns the reason.

        Raises:
            NeighbourError: another member cannot be reached or used.
            RunFailedError, AdamctlError: this member failed.
        """
        assert self.engine is not None
        stop = asyncio.create_task(stopping.wait())
        end = asyncio.create_task(self._ended.wait())
        reporting: asyncio.Task[None] | None = None
        try:
            await self.engine.start()
            await self.links.tell(LEAD, PartReadyRequest(self.group.epoch, self.group.own), READY_S)
            reporting = asyncio.create_task(self._report())
            reporting.add_done_callback(self._task_done)
            await asyncio.wait({stop, end}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                raise self._failure
            return "stopped" if stop.done() else self.cause
        finally:
            for task in (stop, end, *self._tasks, *([reporting] if reporting is not None else [])):
                task.cancel()
            await self.engine.close()
            for one in self._ranges.values():
                if one.examples is not None:
                    one.examples.release()
            self._forget(tuple(self._to_come))

    def handle(self, request: Request) -> None:
        """Serves the lead."""
        message = request.message
        if getattr(message, "group_epoch", 0) != self.group.epoch:
            request.fail(ErrorCode.STALE_GROUP, f"expected a request of group {self.group.epoch}")
        elif isinstance(message, PartTaskRequest):
            if message.first_flight:
                self._spawn(self._take(message))
            else:
                self._read_ahead(message.train[0])
            request.reply(Empty())
        elif isinstance(message, PartStepRequest):
            self._spawn(self._take_step(request, message))
        elif isinstance(message, PartGrantRequest):
            assert self.engine is not None
            self.engine.grant(message.flight)
            request.reply(Empty())
        elif isinstance(message, PartFlushRequest):
            self._spawn(self._flush(request))
        elif isinstance(message, PartStatusRequest):
            assert self.engine is not None
            request.reply(PartStatusReply(*self.engine.standing(message.flight)))
        elif isinstance(message, PartEndRequest):
            request.reply(Empty())
            self.end(message.cause)
        else:
            request.fail(ErrorCode.UNKNOWN_OPCODE, f"partition {self.group.own} does not lead its group")

    def end(self, cause: str) -> None:
        """Ends the session."""
        self.cause = cause
        self._ended.set()

    def fail(self, failure: BaseException) -> None:
        """Ends the session with a failure, unless it has ended."""
        if self._failure is None and not self._ended.is_set():
            self._failure = failure if isinstance(failure, Exception) else RunFailedError(repr(failure))
        self._ended.set()

    def status(self) -> dict[str, object]:
        engine = self.engine
        return {
            "state": "training" if self._training else "evaluating" if self._ranges else "waiting",
            "job": self.group.job,
            "threads": self.threads,
            "batches": self.flights_done,
            "blocks_by": ways(self.links.transports),
            **({"pushes": engine.pushes, **engine.told()} if engine is not None else {}),
        }

    async def _take(self, message: PartTaskRequest) -> None:
        engine = self.engine
        assert engine is not None
        task: Task = message.train[0] if message.train else message.evaluate[0]
        trains = isinstance(task, TrainTask)
        if isinstance(task, TrainTask):
            split, pass_number = "train", task.pass_number
            assert isinstance(engine, PartitionEngine)
            if not self._training:
                await engine.downpour.freshen()
        else:
            split, pass_number = task.split, -1
            await engine.snapshot(task.evaluation)
        self._training += trains
        examples = await self.data.read(self.dataset, split, pass_number, task.start, task.stop)
        rates = Rates(engine.local_factor, engine.local_rate)
        first = message.first_flight
        flights = flights_of_task(task, examples, first, self.group.batch, self.experiment, rates)
        self._ranges[first + len(flights) - 1] = Range(task, examples, len(flights))
        for flight in self._in_order.add(first, flights):
            engine.submit(flight)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _read_ahead(self, task: TrainTask) -> asyncio.Task[Examples]:
        """Begins to read a range whose steps will come, unless it has begun."""
        if task.id not in self._to_come:
            reading = self.data.read(self.dataset, "train", task.pass_number, task.start, task.stop)
            self._to_come[task.id] = asyncio.create_task(reading)
        return self._to_come[task.id]

    def _forget(self, tasks: Collection[int]) -> None:
        """Releases ranges that are over."""
        for task in tasks:
            reading = self._to_come.pop(task, None)
            if reading is not None:
                reading.add_done_callback(_release)
                reading.cancel()

    async def _take_step(self, request: Request, message: PartStepRequest) -> None:
        """Computes this member's share of a part of a step, from the weights that the lead says."""
        engine, task, first = self.engine, message.task, message.first_flight
        assert isinstance(engine, PartitionEngine) and isinstance(engine.downpour, Downpour)
        self._forget(message.over)
        examples = await asyncio.shield(self._read_ahead(task))
        if message.fetch:
            await engine.downpour.fetch()
        flights = flights_of_step(task, message.number, examples, first, self.group.batch, self.experiment)
        self._training += 1
        last = first + len(flights) - 1
        self._ranges[last], self._steps[last] = Range(task, None, len(flights)), request
        for flight in self._in_order.add(first, flights):
            engine.submit(flight)

    async def _push_step(self, request: Request, flight: int) -> None:
        """Pushes what this member owns of a part; a push that fails ends the session by itself."""
        engine, message = self.engine, request.message
        assert isinstance(engine, PartitionEngine) and isinstance(engine.downpour, Downpour)
        assert isinstance(message, PartStepRequest)
        place = place_of(message.task, message.number)
        if await engine.downpour.push(engine.accrued(flight), place, message.channel):
            self._reporting.set()  # the last step of a pass is counted, too
            request.reply(Empty())

    def flight_done(self, done: FlightDone) -> None:
        """Notes a flight of this member's; called by the engine."""
        number = done.flight.number
        step = self._steps.pop(number, None)
        if step is not None:
            self._spawn(self._push_step(step, number))
        last = min(end for end in self._ranges if end >= number)
        own = self._ranges[last]
        own.left -= 1
        if not own.left:
            del self._ranges[last]
            self._training -= isinstance(own.task, TrainTask)
            if own.examples is not None:
                own.examples.release()
        found = done.found
        self._reports.append(FlightReport(number, found.loss, found.correct, done.compute_s, done.idle_s, found.sums))
        self.flights_done += 1
        self._reporting.set()

    async def _report(self) -> None:
        """Tells the lead what is finished, as soon as there is something."""
        assert self.engine is not None
        while True:
            await self._reporting.wait()
            self._reporting.clear()
            reports, self._reports = tuple(self._reports), []
            counts = self.engine.take_counts()
            message = PartDoneRequest(
                self.group.epoch, self.group.own, reports, counts.updates, counts.staleness, counts.ages, self.status()
            )
            await self.links.tell(LEAD, message, REPORT_S)

    async def _flush(self, request: Request) -> None:
        assert self.engine is not None
        try:
            await self.engine.flush()
        except Exception as failure:
            request.fail(ErrorCode.INTERNAL, str(failure))
            raise
        request.reply(Empty())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self.fail(failure)


def _release(reading: asyncio.Task[Examples]) -> None:
    if not reading.cancelled() and reading.exception() is None:
        reading.result().release()

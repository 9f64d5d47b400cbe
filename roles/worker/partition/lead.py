"""The lead's side of a group: it numbers flights, hands ranges to the others, and counts what all have finished.

For the session of the run it stands for the compute threads of a whole replica: batches go in, and come back done when
every member has finished them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from adamctl.kernels.partition.program import Batch as FlightBatch
from adamctl.net.transport import Request
from adamctl.roles.worker.compute import NOTHING, Batch, BatchDone
from adamctl.roles.worker.core.batches import Task
from adamctl.roles.worker.core.grants import FlightGrants
from adamctl.roles.worker.core.open_flights import Patience, Standing
from adamctl.roles.worker.partition.flight_engine import Counts, FlightEngine
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.hanging import HangWatcher, Oldest
from adamctl.roles.worker.partition.links import Links, NeighbourError, ways
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Empty,
    FlightReport,
    Message,
    PartDoneRequest,
    PartEndRequest,
    PartFlushRequest,
    PartGrantRequest,
    PartReadyRequest,
    PartStatusReply,
    PartStatusRequest,
    PartTaskRequest,
    TrainTask,
)

READY_S = 120.0
FLUSH_S = 120.0


@dataclass
class _Out:
    """A flight that is not finished everywhere. `left`: who has not finished it; `done` is told when all have."""

    batch: Batch
    left: set[int]
    done: Callable[[BatchDone], None]
    loss_sum: float = 0.0
    correct: int = 0
    sums: tuple[float, ...] = ()
    compute_s: dict[int, float] = field(default_factory=dict)
    wait_s: float = 0.0


def added(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Returns the sum of two histograms."""
    return tuple(first + second for first, second in zip_longest(one, other, fillvalue=0))


EngineT = TypeVar("EngineT", bound=FlightEngine)


class Lead(Generic[EngineT]):
    """See the module. Everything runs on the event loop.

    Attributes:
        engine: this member's own partition.
        counts: of the other members.
        statuses: of each other member, as it last told.
        computed_s: of each partition, in training flights.
        trained: examples of these.
    """

    def __init__(
        self,
        group: Group,
        links: Links,
        reporter: int,
        failed: Callable[[BaseException], None],
        patience: Patience = Patience(),
        cut: str = "",
    ) -> None:
        """`failed` is told when a member does not answer, or hangs.

        Args:
            reporter: the partition that computes losses.
            cut: of the model, for people.
        """
        self._group, self._links, self._reporter, self._failed = group, links, reporter, failed
        self._cut = cut
        self.engine: EngineT
        self.counts = Counts()
        self.statuses: dict[int, dict[str, Any]] = {}
        self.computed_s = [0.0] * len(group.members)
        self.trained = 0
        self.batch_done: Callable[[BatchDone], None] = lambda done: None
        self._flights: dict[int, _Out] = {}
        self._number = 0
        self._announced: Task | None = None
        self._ready: dict[int, asyncio.Event] = {one: asyncio.Event() for one in links.others}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._grants: FlightGrants | None = None
        self._granted_told = 0
        self._hanging = HangWatcher(group, patience, self._oldest, self._stands)

    async def begin(self) -> None:
        """Starts this partition, and waits until all others are ready.

        Raises:
            NeighbourError: a member cannot be reached, or is not ready in time.
        """
        await self.engine.start()
        for one, ready in self._ready.items():
            try:
                await asyncio.wait_for(ready.wait(), READY_S)
            except TimeoutError as error:
                text = f"{self._group.name(one)} was not ready within {READY_S:g} s"
                raise NeighbourError(text, one) from error
        self._spawn(self._hanging.run())

    def takes(self, done: Callable[[BatchDone], None]) -> None:
        """Says who is told of batches that all members have finished."""
        self.batch_done = done

    @property
    def epoch(self) -> int:
        """Of the group."""
        return self._group.epoch

    @property
    def batch(self) -> int:
        """Examples of a whole flight."""
        return self._group.batch

    @property
    def next_flight(self) -> int:
        """The number that the next flight will have."""
        return self._number + 1

    def paced(self, changed: Callable[[], None]) -> FlightGrants:
        """Returns what lets flights begin from now on, as the coordinator allows; `changed`: see `Pacer`."""
        self._grants = FlightGrants(changed, self._grant, asyncio.get_running_loop().time)
        return self._grants

    def submit(self, batch: Batch, done: Callable[[BatchDone], None] | None = None) -> None:
        """Gives a batch the next number, and announces its task to the others with its first one.

        `done`: who is told of it; None: who is told of all.
        """
        if batch.task is not self._announced:
            self._announced = batch.task
            first, epoch = self.next_flight, self._group.epoch
            if isinstance(batch.task, TrainTask):
                self.tell_others(PartTaskRequest(epoch, first, train=(batch.task,)))
            else:
                self.tell_others(PartTaskRequest(epoch, first, evaluate=(batch.task,)))
        self.begin_flight(batch, FlightBatch(batch.images, batch.labels, batch.key), done or self.batch_done)

    def begin_flight(self, batch: Batch, made: FlightBatch, done: Callable[[BatchDone], None]) -> None:
        """Gives a batch, or a part of one, the next number; `done` is told when all members have finished it."""
        self._number += 1
        self._flights[self._number] = _Out(batch, set(range(len(self._group.members))), done)
        trains = isinstance(batch.task, TrainTask)
        flight = Flight(self._number, made, trains, batch.local_learning_rate, batch.learning_rate)
        self._hanging.watch.begins(asyncio.get_running_loop().time())
        self.engine.submit(flight)
        if self._grants is not None:
            self._grants.announced(self._number, trains)

    def _grant(self, flight: int) -> None:
        """Tells all members up to which flight they may begin; the others once for all that is granted by then."""
        self.engine.grant(flight)
        asyncio.get_running_loop().call_soon(self._tell_granted)

    def _tell_granted(self) -> None:
        assert self._grants is not None
        if self._grants.granted == self._granted_told:
            return
        self._granted_told = self._grants.granted
        self.tell_others(PartGrantRequest(self._group.epoch, self._granted_told))

    def tell_others(self, message: Message) -> None:
        """Sends a request to all other members; one that does not answer ends the group."""
        for one in self._links.others:
            self._spawn(self._links.tell(one, message))

    def ask_others(self, message: Message, deadline_s: float) -> list[asyncio.Task[bool]]:
        """As `tell_others`; returns what ends when each has answered, with False if it does not."""
        asked = [asyncio.create_task(self._asked(one, message, deadline_s)) for one in self._links.others]
        for task in asked:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return asked

    async def _asked(self, partition: int, message: Message, deadline_s: float) -> bool:
        try:
            await self._links.tell(partition, message, deadline_s)
        except NeighbourError as failure:
            self._failed(failure)
            return False
        return True

    async def answers_of(self, message: Message, deadline_s: float) -> list[Message]:
        """Returns what all other members answer. Raises NeighbourError for one that does not; it ends the group."""
        try:
            return await asyncio.gather(*(self._links.ask(one, message, deadline_s) for one in self._links.others))
        except NeighbourError as failure:
            self._failed(failure)
            raise

    def flight_done(self, done: FlightDone) -> None:
        """Notes a flight of this member's own."""
        found = done.found
        report = FlightReport(done.flight.number, found.loss, found.correct, done.compute_s, done.idle_s, found.sums)
        self._finished(self._group.own, report)

    def handle(self, request: Request) -> None:
        """Serves the other members."""
        message = request.message
        if getattr(message, "group_epoch", 0) != self._group.epoch:
            request.fail(ErrorCode.STALE_GROUP, f"expected a request of group {self._group.epoch}")
        elif isinstance(message, PartReadyRequest) and message.partition in self._ready:
            self._ready[message.partition].set()
            request.reply(Empty())
        elif isinstance(message, PartDoneRequest):
            self._told(message)
            request.reply(Empty())
        else:
            request.fail(ErrorCode.UNKNOWN_OPCODE, "the lead of a group takes no such request")

    def _told(self, message: PartDoneRequest) -> None:
        counts = self.counts
        counts.updates += message.updates
        counts.staleness = added(counts.staleness, message.staleness)
        counts.ages = added(counts.ages, message.gradient_ages)
        self.statuses[message.partition] = message.status
        for report in message.flights:
            self._finished(message.partition, report)

    def _finished(self, partition: int, report: FlightReport) -> None:
        out = self._flights.get(report.number)
        if out is None or partition not in out.left:
            return
        out.left.discard(partition)
        if partition == self._reporter:
            out.loss_sum, out.correct, out.sums = report.loss_sum, report.correct, report.sums
        out.compute_s[partition], out.wait_s = report.compute_s, max(out.wait_s, report.wait_s)
        if not out.left:
            del self._flights[report.number]
            self._count(out)
            if self._grants is not None and isinstance(out.batch.task, TrainTask):
                self._grants.finish()
            self._hanging.watch.finished(asyncio.get_running_loop().time(), len(self._flights))
            longest_s = max(out.compute_s.values())
            out.done(BatchDone(out.batch, out.loss_sum, out.correct, longest_s, out.wait_s, NOTHING, sums=out.sums))

    def _count(self, out: _Out) -> None:
        """Counts what each partition has computed in a flight that trained."""
        if isinstance(out.batch.task, TrainTask):
            self.trained += len(out.batch.labels)
            for partition, seconds in out.compute_s.items():
                self.computed_s[partition] += seconds

    def take_counts(self) -> Counts:
        """Returns what the others have told since the last call."""
        counts, self.counts = self.counts, Counts()
        return counts

    def _oldest(self) -> Oldest | None:
        number = min(self._flights, default=None)
        return None if number is None else Oldest(number, frozenset(self._flights[number].left))

    async def _stands(self, partition: int, flight: int) -> Standing | None:
        """Returns where a flight stands with a member; None if it does not answer."""
        if partition == self._group.own:
            return self.engine.standing(flight)
        try:
            told = await self._links.ask(partition, PartStatusRequest(self._group.epoch, flight))
        except NeighbourError:
            return None
        assert isinstance(told, PartStatusReply)
        return Standing(told.state, told.waits_for, told.still_s)

    async def flush(self) -> None:
        """Has all members push what they have accrued, and waits until servers have answered."""
        request = PartFlushRequest(self._group.epoch)
        others = (self._links.tell(one, request, FLUSH_S) for one in self._links.others)
        await asyncio.gather(self.engine.flush(), *others)

    async def end(self, cause: str) -> None:
        """Tells the others that the run is over."""
        message: Message = PartEndRequest(self._group.epoch, self._group.own, cause)
        await asyncio.gather(*(self._links.tell(one, message) for one in self._links.others), return_exceptions=True)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.engine.close()

    def status(self) -> dict[str, object]:
        """Returns what status shows of the group besides the replica's own."""
        own = self.engine.told()
        others = [{name: told.get(name) for name in own} for _, told in sorted(self.statuses.items())]
        computed = [(round(seconds, 6), self.trained) for seconds in self.computed_s]
        more = {"blocks_by": ways(self._links.transports), "computed": computed}
        return {**own, "members": [own, *others], "cut": self._cut, **more}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._failed(failure)

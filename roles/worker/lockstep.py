"""One replica of several in step: computes its parts of a step, waits for the answers, fetches the next weights.

A step of this replica is: fetch the weights that contain all steps before, compute its part or parts of the step, push
them, and wait until the servers have applied them. They do so when the parts of all replicas have arrived, so the
answer says that the step is complete. The weights stay unchanged until then: if another replica dies, its parts of the
step may come here, and are computed from the same weights.

A replica without a part in a step, because it has just joined or a pass is ending, asks the coordinator when the step
is complete. So does a replica that waits too long: a server that lost what it had acknowledged may wait for parts that
nobody will send again. If one of a replica's several parts was answered, it need not ask: that answer says that the
step was complete, whatever has been lost since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from adamctl.roles.ps.client.parameter_client import Place
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.core.slots import Slot
from adamctl.wire.messages import RunStepRequest, TrainTask

POLL_S = 5.0
STUCK_S = 3.0
"""How long a step's answers may take before the coordinator is asked whether the step is complete."""
TELL_S = 10.0
"""How often steps are reported to the coordinator: a replica without steps is declared dead, and ranges may be long."""


class Part(NamedTuple):
    """A batch with its place, ordered by that. `number` distinguishes parts of the same place."""

    place: Place
    number: int
    batch: Batch


class Exchange(Protocol):
    """Exchanges parameters with the servers: `Downpour`, or `GroupSteps` where the replica has several partitions."""

    async def fetch(self) -> None: ...
    def push(self, slot: Slot, place: Place | None = None, channel: int = 0) -> asyncio.Task[bool]: ...


class Lockstep:
    """Processes parts in the order of their steps. Everything runs on the event loop.

    Attributes:
        settled: the last step that is known to be applied by all servers.
        waits, wait_s: how often this replica waited for servers and for other replicas, and the total time.
    """

    def __init__(
        self,
        node: str,
        incarnation: int,
        exchange: Exchange,
        submit: Callable[[Batch, Place, int], None],
        ask: Callable[[RunStepRequest], Awaitable[int]],
        finished: Callable[[BatchDone | Batch], None],
        group_epoch: int = 0,
    ) -> None:
        """Args:
        submit: hands a batch to what computes it, with its place and the channel on which it will be pushed.
        ask, group_epoch: as in `Pacer`.
        finished: called with every part when its step is complete; with its batch if it was not computed.
        """
        self._node, self._incarnation, self._group_epoch = node, incarnation, group_epoch
        self._exchange, self._submit, self._ask, self._finished = exchange, submit, ask, finished
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._parts: list[Part] = []
        self._added = 0
        self._pushes: list[asyncio.Task[bool]] = []
        self._channels: dict[int, asyncio.Task[bool]] = {}
        self._computed: list[BatchDone] = []
        self._computing: asyncio.Future[BatchDone] | None = None
        self._asking: asyncio.Task[int] | None = None
        self._weights_after = -1
        self.settled = 0
        self._idle_s = 0.0
        self._told_s = self._loop.time()
        self.waits = 0
        self.wait_s = 0.0

    def add(self, place: Place, batch: Batch) -> None:
        """Takes a part of a step."""
        self._added += 1
        heappush(self._parts, Part(place, self._added, batch))
        self._changed.set()

    def done(self, done: BatchDone) -> None:
        """Notes that the compute thread has finished its part."""
        if self._computing is not None and not self._computing.done():
            self._computing.set_result(done)

    async def run(self) -> None:
        """Runs until it is cancelled; raises what fetching and asking raise."""
        try:
            while True:
                self._changed.clear()
                if not await self._advance():
                    began_s = self._loop.time()
                    await self._wait()
                    waited_s = self._loop.time() - began_s
                    if self._pushes or self._parts:
                        self.waits += 1
                        self.wait_s += waited_s
                    else:
                        self._idle_s += waited_s
        finally:
            if self._asking is not None:
                self._asking.cancel()

    async def _wait(self) -> None:
        """Waits for something to change; gives up on answers that take too long, or asks about them."""
        try:
            async with asyncio.timeout(STUCK_S if self._pushes else None):
                await self._changed.wait()
        except TimeoutError:
            if any(_answered(push) for push in self._pushes):
                self._settle(self.settled + 1)
            else:
                self._begin_asking(self.settled + 2)

    async def _advance(self) -> bool:
        """Does the next thing that can be done now; returns False if there is nothing."""
        self._take_answer()
        while self._parts and self._parts[0].place.step <= self.settled:
            self._finished(heappop(self._parts).batch)
        first = self._parts[0].place.step if self._parts else 0
        if first == self.settled + 1:
            if self._weights_after == self.settled:
                await self._compute(heappop(self._parts))
            else:
                settled = self.settled
                await self._exchange.fetch()
                self._weights_after = settled
            return True
        if self._pushes:
            complete = all(_answered(push) for push in self._pushes)
            if complete:
                self._settle(self.settled + 1)
            return complete
        if first:
            self._begin_asking(first)
        return False

    async def _compute(self, part: Part) -> None:
        self._computing = self._loop.create_future()
        channel = next(number for number in count() if number not in self._channels or self._channels[number].done())
        self._submit(part.batch, part.place, channel)
        done = await self._computing
        self._computing = None
        if done.actions is None or done.actions.push is None:
            return  # the replica is stopping
        push = self._channels[channel] = self._exchange.push(done.actions.push, part.place, channel)
        push.add_done_callback(lambda _: self._changed.set())
        self._pushes.append(push)
        self._computed.append(done._replace(wait_s=self._idle_s))
        self._idle_s = 0.0

    def _settle(self, step: int) -> None:
        """Notes that a step, and all before it, are complete."""
        if step <= self.settled:
            return
        self.settled = step
        self._pushes.clear()
        computed, self._computed = self._computed, []
        for done in computed:
            self._finished(done)
        if self._loop.time() >= self._told_s + TELL_S:
            self._begin_asking(0)

    # --- the coordinator --------------------------------------------------------------------------------------------

    def _begin_asking(self, step: int) -> None:
        """Asks when a step may begin (0: none), unless a request to the coordinator is under way."""
        if self._asking is None:
            self._told_s = self._loop.time()
            wait_s = POLL_S if step else 0.0
            request = RunStepRequest(self._node, self._incarnation, self.settled, step, wait_s, self._group_epoch)
            self._asking = asyncio.ensure_future(self._ask(request))
            self._asking.add_done_callback(lambda _: self._changed.set())

    def _take_answer(self) -> None:
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            self._settle(asked.result() - 1)


def _answered(push: asyncio.Task[bool]) -> bool:
    """Whether servers have answered. A failed push, perhaps not applied, ends the session; others do its part."""
    return push.done() and not push.cancelled() and push.result()


def place_of(task: TrainTask, number: int) -> Place:
    """Returns the place of a task's batch, counted from 0."""
    return Place(task.step + number, task.part, sum(batches > number for batches in task.batches))

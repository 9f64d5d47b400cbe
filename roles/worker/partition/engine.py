"""One partition of a replica at work: its flights, its slots, and its pushes and fetches.

Every context of a flight accrues like a thread of an ordinary replica: into slots of its own, which are pushed after so
many steps. A partition pushes the rows that it alone holds or owns, and fetches all that it holds.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from adamctl.config.experiment import Experiment
from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.memory import WORD_BYTES
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors
from adamctl.model.layout import ParameterLayout, Tensor
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.worker.core.open_flights import SERVERS, Standing
from adamctl.roles.worker.core.slots import Slot, StepActions
from adamctl.roles.worker.core.waiting import Waiting
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.own.place import OwnPlace
from adamctl.roles.worker.own.updates import OwnUpdates
from adamctl.roles.worker.partition.links import Group, Links
from adamctl.roles.worker.partition.threads import Flight, FlightDone, FlightThreads
from adamctl.roles.worker.protocol import PushProtocol
from adamctl.roles.worker.replica import SLOTS_PER_THREAD, Replica, slots_in_step

ALL_FLIGHTS = sys.maxsize
JOIN_S = 30.0
"""How long a thread's call may take, before and after it is told to stop: until its flight waits, or is done."""


@dataclass(frozen=True)
class Parts:
    """What an engine is made of.

    Attributes:
        threads: compute threads.
        spins: see `adamctl.roles.worker.partition.threads.SPINS`.
    """

    group: Group
    network: CutNetwork
    layout: ParameterLayout
    experiment: Experiment
    threads: int
    spins: int
    log: logging.Logger


class PartitionEngine:
    """See the module. Everything runs on the event loop except what `FlightThreads` does.

    Attributes:
        replica: this partition's weights and slots.
        downpour: its pushes and fetches.
        flights_done: flights that this partition has finished.
    """

    def __init__(
        self,
        parts: Parts,
        links: Links,
        parameters: ParameterClient | OwnPlace,
        done: Callable[[FlightDone], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`done` is called on the event loop for each flight, in the order in which they finish here."""
        self._parts, self._links, self._done, self._failed = parts, links, done, failed
        experiment, group = parts.experiment, parts.group
        self._in_step = experiment.train.in_step
        self.local_factor = experiment.local_learning_rate_factor()
        self.local_rate = 0.0 if experiment.train.local_lr == "auto" else experiment.train.local_lr
        applies_locally = (self.local_factor if self.local_factor is not None else self.local_rate) != 0.0
        tensors = MemberTensors(parts.network, group.own)
        owned = owned_shards(parts.layout, group.own)
        protocol: PushProtocol | None = None
        if not isinstance(parameters, OwnPlace):
            protocol = PushProtocol(
                experiment.train,
                pushed_tensors(parts.layout, owned),
                parameters.servers_of_tensors(),
                applies_locally=applies_locally,
                log=parts.log,
            )
        self._threads: FlightThreads | None = None
        self.replica = Replica(
            parts.network,
            parts.layout,
            1 if self._in_step else group.flights,
            group.batch,
            experiment.steps_per_update,
            experiment.train.steps_per_fetch,
            () if protocol is None else protocol.kept,
            applies_locally,
            _slots(parts),
            ranges=tensors.ranges,
            freed=self._freed,
            rows={held.tensor: held.rows for held in tensors.held},
            skips=protocol is not None and protocol.skips_gradients,
        )
        self._held: deque[Flight] = deque()
        self._granted = 0 if experiment.train.max_staleness is not None else ALL_FLIGHTS
        self.downpour: Downpour | OwnUpdates
        # Without servers all members apply the same gradients to what they share in one order, and keep the same bits.
        # In step, the parts of a batch are counted in one slot.
        self._in_order = isinstance(parameters, OwnPlace) or self._in_step
        self._accrued: dict[int, Slot] = {}
        self._waiting: dict[int, tuple[FlightDone, StepActions | None]] = {}
        self._next = 1
        if isinstance(parameters, OwnPlace):
            self.downpour = parameters.updates_of(self.replica, failed)
        else:
            parameters.shared.add(self.replica.memory)
            self.downpour = Downpour(self.replica, parameters, failed, protocol, owned)
        self._loop = asyncio.get_running_loop()
        self._evaluation: tuple[int, asyncio.Task[None]] | None = None
        self._halting: asyncio.Future[None] | None = None
        self.flights_done = 0

    async def start(self) -> None:
        """Attaches to the other members, fetches the first parameters, compiles, and starts the threads.

        Raises:
            NeighbourError: a member cannot be reached or used.
        """
        neighbours = await self._links.attach()
        self._links.watch(self._failed)
        group = self._parts.group
        for one, how in sorted(self._links.transports.items()):
            self._parts.log.info("run %s: blocks to and from %s go by %s", group.job, group.name(one), how)
        await self.downpour.start()
        parts = self._parts

        def make() -> Member:
            turn = np.ones(WORD_BYTES // 8, np.int64)[:1] if self._in_step else None
            accruing = [self.replica.accruing_of(context, turn) for context in range(parts.group.flights)]
            return Member(
                parts.network,
                neighbours,
                parts.group.batch,
                parts.group.flights,
                self.replica.weights,
                accruing=accruing,
                clip_norm=parts.experiment.optimizer.clip_norm,
                snapshot=self.replica.snapshot,
            )

        member = await asyncio.to_thread(make)
        threads = FlightThreads(
            member, parts.group.flights, parts.threads, self._links.sleeping, self._finished, self, spins=parts.spins
        )
        self._threads = threads
        threads.start()

    def submit(self, flight: Flight) -> None:
        """Takes the next flight, in the order of their numbers; it begins when it is granted."""
        self._held.append(flight)
        self._submit_granted()

    def grant(self, flight: int) -> None:
        """Says that flights up to this one may begin, where replicas may be only so many steps apart."""
        self._granted = max(self._granted, flight)
        self._submit_granted()

    def _submit_granted(self) -> None:
        assert self._threads is not None
        while self._held and self._held[0].number <= self._granted:
            flight = self._held.popleft()
            self._links.submitted(flight.number, len(flight.batch.labels))
            self._threads.submit(flight)

    @property
    def open_flights(self) -> dict[int, tuple[int, int]]:
        return {} if self._threads is None else self._threads.open_flights

    def standing(self, number: int) -> Standing:
        """Returns where a flight stands here."""
        return Standing(SERVERS) if self._threads is None else self._threads.standing(number)

    def told(self) -> dict[str, Any]:
        """Returns what is told of this member: how many flights are open, how much threads wait, and for whom."""
        waiting = Waiting(0.0, {}) if self._threads is None else self._threads.waiting
        own = {"partition": self._parts.group.own, "flights": len(self.open_flights)}
        return own | waiting.for_status()

    @property
    def hangs(self) -> bool:
        """Whether a thread has not ended, though it was stopped and waited for."""
        return self._threads is not None and self._threads.running

    def begin(self, context: int, flight: Flight) -> SlotPlace | None:
        """See `adamctl.roles.worker.partition.threads.Slots`."""
        return self.replica.try_step(0 if self._in_step else context, flight.rate)

    def _finished(self, done: FlightDone) -> None:
        """Counts a flight; called by its thread."""
        actions: StepActions | None = None
        flight = done.flight
        if done.failure is None and flight.trains and not self._in_step:
            context = flight.number % self._parts.group.flights
            examples = len(flight.batch.labels)
            actions = self.replica.end_native_steps(context, 1, examples, flight.learning_rate, flight.rate)
        try:
            self._loop.call_soon_threadsafe(self._deliver, done, actions)
        except RuntimeError:  # the loop is closed: the session is over
            return

    def _deliver(self, done: FlightDone, actions: StepActions | None) -> None:
        if done.failure is not None:
            self._failed(done.failure)
        elif self._in_order:
            self._waiting[done.flight.number] = done, actions
            while (found := self._waiting.pop(self._next, None)) is not None:
                self._next += 1
                self._count(*found)
        else:
            self._count(done, actions)

    def _count(self, done: FlightDone, actions: StepActions | None) -> None:
        self.flights_done += 1
        if self._in_step and done.flight.trains:
            self._count_part(done.flight)
        if actions is not None and actions.push is not None:
            self.downpour.push(actions.push)
        if actions is not None and actions.fetch:
            self.downpour.want_fetch()
        self._done(done)

    def _count_part(self, flight: Flight) -> None:
        """The parts of a batch are one step; it is pushed when the lead says on which way."""
        is_last, examples = flight.batch.is_last, len(flight.batch.labels)
        actions = self.replica.end_native_steps(0, int(is_last), examples, flight.learning_rate, flight.rate)
        if actions.push is not None:
            self._accrued[flight.number] = actions.push

    def accrued(self, flight: int) -> Slot:
        """Returns, once, the gradient of the batch in step whose last part this flight was."""
        return self._accrued.pop(flight)

    def _freed(self) -> None:
        """A slot may be free again: its push is answered, or what lacked it is installed."""
        if self._threads is not None:
            self._threads.look()

    async def flush(self) -> None:
        """Pushes what is accrued, while no flight trains, and waits until all pushes are answered."""
        for slot in self.replica.flush():
            self.downpour.push(slot)
        await self.downpour.settled()

    async def snapshot(self, evaluation: int) -> None:
        """Pulls the parameters of an evaluation, once."""
        if self._evaluation is None or self._evaluation[0] != evaluation:
            pulling = asyncio.create_task(self.downpour.snapshot(self.replica.snapshot))
            self._evaluation = evaluation, pulling
        await asyncio.shield(self._evaluation[1])

    def stop(self) -> None:
        """Stops the threads after their current work."""
        self.replica.stop()
        if self._threads is not None:
            self._threads.stop()

    async def halt(self) -> None:
        """Stops the threads, and waits until they have ended, or their time is over: then `hangs` is true."""
        self.stop()
        if self._threads is not None:
            if self._halting is None:
                left_s = max(JOIN_S - self._threads.held_s, 1.0)  # what has hung for long has been waited for
                self._halting = asyncio.get_running_loop().run_in_executor(None, self._threads.join, left_s)
            await asyncio.shield(self._halting)

    async def close(self) -> None:
        """Stops everything; the links may then be closed, unless it `hangs`."""
        await self.halt()
        if self._evaluation is not None:
            self._evaluation[1].cancel()
        await self.downpour.close()
        self.replica.memory.close()


def _slots(parts: Parts) -> int:
    """Returns how many slots each flight has; in step, all of them together."""
    experiment = parts.experiment
    if experiment.has_own_parameters:
        return 1
    if experiment.train.in_step:
        return slots_in_step(experiment.cluster.workers // len(parts.group.members))
    return slots_per_flight(parts.threads, parts.group.flights)


def slots_per_flight(threads: int, flights: int) -> int:
    """Returns how many slots each open flight has: as many as so many threads have together, and at least two each."""
    return max(2, -(-SLOTS_PER_THREAD * threads // flights))


def pushed_tensors(layout: ParameterLayout, owned: Collection[int]) -> dict[int, Tensor]:
    """Returns the parts of tensors that a member pushes, by index. Its rows of a tensor lie side by side."""
    rows: dict[int, int] = {}
    for index in owned:
        shard = layout.shards[index]
        rows[shard.tensor] = rows.get(shard.tensor, 0) + shard.row_stop - shard.row_start
    return {
        index: msgspec.structs.replace(tensor, shape=(rows[index], *tensor.shape[1:]))
        for index, tensor in enumerate(layout.tensors)
        if index in rows
    }


def owned_shards(layout: ParameterLayout, partition: int) -> tuple[int, ...]:
    """Returns the shards that a partition pushes."""
    of_bucket = layout.partition_of_bucket
    return tuple(shard.index for shard in layout.shards if of_bucket[layout.bucket_of_shard[shard.index]] == partition)


def held_shards(layout: ParameterLayout, network: CutNetwork, partition: int) -> tuple[int, ...]:
    """Returns the shards that a partition computes with: its own, and those of tensors that others hold, too."""
    rows = {held.tensor: held.rows for held in MemberTensors(network, partition).held}
    return tuple(
        shard.index
        for shard in layout.shards
        if shard.tensor in rows and shard.row_start < rows[shard.tensor][1] and rows[shard.tensor][0] < shard.row_stop
    )

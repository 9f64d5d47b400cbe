"""One partition of a replica at work: its flights, its slots, and its pushes and fetches.

Every context of a flight accrues like a thread of an ordinary replica: into slots of its own, which are pushed after so
many steps. A partition pushes the rows that it alone holds or owns, and fetches all that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import numpy as np

from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.memory import WORD_BYTES
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors
from adamctl.model.layout import ParameterLayout, Tensor
from adamctl.model.partition.work import SLOTS_PER_THREAD
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.worker.core.slots import Slot, StepActions
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.own.place import OwnPlace
from adamctl.roles.worker.own.updates import OwnUpdates
from adamctl.roles.worker.partition.flight_engine import Counts, FlightEngine, Parts
from adamctl.roles.worker.partition.links import Links
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.roles.worker.protocol import PushProtocol
from adamctl.roles.worker.replica import Replica, slots_in_step


class PartitionEngine(FlightEngine):
    """See the module. Everything runs on the event loop except what `FlightThreads` does.

    Attributes:
        replica: this partition's weights and slots.
        downpour: its pushes and fetches.
    """

    def __init__(
        self,
        parts: Parts,
        links: Links,
        parameters: ParameterClient | OwnPlace,
        done: Callable[[FlightDone], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`done`: see `FlightEngine`."""
        super().__init__(parts, links, done, failed)
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
            freed=self._look,
            rows={held.tensor: held.rows for held in tensors.held},
            skips=protocol is not None and protocol.skips_gradients,
        )
        if experiment.train.max_staleness is not None:
            self._granted = 0
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
        self._updates_taken = 0

    async def start(self) -> None:
        """As `FlightEngine.start`; the first parameters are fetched."""
        neighbours = await self._attach()
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

        await self._run(make, self)

    def begin(self, context: int, flight: Flight) -> SlotPlace | None:
        """See `adamctl.roles.worker.partition.threads.Slots`."""
        return self.replica.try_step(0 if self._in_step else context, flight.rate)

    def _finished(self, done: FlightDone) -> None:
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

    async def flush(self) -> None:
        for slot in self.replica.flush():
            self.downpour.push(slot)
        await self.downpour.settled()

    async def pull_snapshot(self) -> None:
        await self.downpour.snapshot(self.replica.snapshot)

    def take_counts(self) -> Counts:
        updates, self._updates_taken = self.downpour.updates - self._updates_taken, self.downpour.updates
        return Counts(updates, self.downpour.take_staleness(), self.downpour.take_ages())

    @property
    def pushes(self) -> int:
        return self.downpour.pushes

    def stop(self) -> None:
        self.replica.stop()
        super().stop()

    async def close(self) -> None:
        await super().close()
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

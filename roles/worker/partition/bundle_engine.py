"""One partition at work for a batch algorithm: portions of bundles are its flights (DistBelief 4.2, Sandblaster).

Nothing is applied here, and parameters change only while no portion is on its way. Flights accrue in the order of their
numbers, and the portions of a bundle come in order, one after the other. So the sum that a bundle leaves has the same
bits whatever the number of threads and of open flights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from adamctl.kernels.partition.accruing import Accruing, SlotPlace
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.memory import WORD_BYTES
from adamctl.net.shared_memory import SharedMemory, array_bytes
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.worker.core.bundle_work import Pull
from adamctl.roles.worker.partition.engine import owned_shards
from adamctl.roles.worker.partition.flight_engine import Counts, FlightEngine, Parts
from adamctl.roles.worker.partition.links import Links
from adamctl.roles.worker.partition.threads import Flight, FlightDone
from adamctl.roles.worker.sandblaster.executor import pull_vector, refused_by_bucket

PUSHED_AT_A_TIME = 2
"""Sums beyond those of open flights: they are on their way to servers while the next are computed."""


class BundleEngine(FlightEngine):
    """See the module. A bundle is known by its first flight.

    Attributes:
        memory: of what is here, for servers on this machine.
        parameters: flat vector, of which this partition touches what it holds.
    """

    def __init__(
        self,
        parts: Parts,
        links: Links,
        parameters: ParameterClient,
        done: Callable[[FlightDone], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`done`: see `FlightEngine`.

        Raises:
            MemoryError: the system does not have that much memory.
        """
        super().__init__(parts, links, done, failed)
        self._client, size = parameters, parts.layout.flat_size
        count = parts.group.flights + PUSHED_AT_A_TIME
        self.memory = SharedMemory((2 + count) * array_bytes(size))
        self.parameters, self._snapshot = self.memory.array(size), self.memory.array(size)
        self._sums = [self.memory.array(size) for _ in range(count)]
        self._filled = np.zeros(count, np.int64)
        parameters.shared.add(self.memory)
        self._owned = owned_shards(parts.layout, parts.group.own)
        self._lock = threading.Lock()
        self._bundle_of: dict[int, int] = {}  # of flights that have not begun
        self._place_of: dict[int, int] = {}  # of bundles that have begun
        self._free = list(range(count))
        self._pushes = 0

    async def start(self) -> None:
        neighbours = await self._attach()
        parts, turn = self._parts, np.ones(WORD_BYTES // 8, np.int64)[:1]

        def make() -> Member:
            accruing = [Accruing(self._sums, None, self._filled, turn=turn) for _ in range(parts.group.flights)]
            return Member(
                parts.network, neighbours, parts.group.batch, parts.group.flights, self.parameters,
                accruing=accruing, snapshot=self._snapshot,
            )  # fmt: skip

        await self._run(make, self)

    # --- portions -----------------------------------------------------------------------------------------------------

    def expect(self, bundle: int, flights: Sequence[int]) -> None:
        """Says that these flights, which follow, are the next portions of a bundle."""
        with self._lock:
            self._bundle_of |= dict.fromkeys(flights, bundle)

    def begin(self, context: int, flight: Flight) -> SlotPlace | None:
        """See `adamctl.roles.worker.partition.threads.Slots`."""
        with self._lock:
            bundle = self._bundle_of[flight.number]
            if bundle not in self._place_of:
                if not self._free:
                    return None
                self._place_of[bundle] = place = self._free.pop()
                self._filled[place] = 0
            del self._bundle_of[flight.number]
            return SlotPlace(self._place_of[bundle])

    def _finished(self, done: FlightDone) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, done)
        except RuntimeError:  # the loop is closed: the session is over
            return

    def _deliver(self, done: FlightDone) -> None:
        if done.failure is not None:
            self._failed(done.failure)
            return
        self.flights_done += 1
        self._done(done)

    # --- bundles ------------------------------------------------------------------------------------------------------

    async def push(self, bundle: int, evaluation: int, number: int, weight: float) -> dict[int, int]:
        """Pushes what this partition owns of a bundle's sum, and frees it; returns what buckets have refused, and why.

        Raises:
            RemoteError: a server refused it with a code that nobody expects.
            DeadlineError: not all servers have answered.
        """
        try:
            outcome = await self._client.add_bundle(
                evaluation, number, weight, self._sums[self._place_of[bundle]], shards=self._owned
            )
        finally:
            self.forget(bundle)
        self._pushes += not outcome.refused
        return refused_by_bucket(self._parts.layout, outcome)

    def forget(self, bundle: int) -> None:
        """Frees what a bundle has left."""
        with self._lock:
            self._free.append(self._place_of.pop(bundle))
        self._look()

    # --- parameters ---------------------------------------------------------------------------------------------------

    async def pull(self, pull: Pull) -> list[int]:
        """Pulls the vector of an evaluation while no portion is on its way; returns the buckets that do not have it."""
        return await pull_vector(self._client, self.parameters, pull)

    async def pull_snapshot(self) -> None:
        """Pulls the accepted parameters, for flights that do not train."""
        await self._client.pull(self._snapshot, exact=True)

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Nothing accrues beyond bundles."""

    def take_counts(self) -> Counts:
        return Counts()

    @property
    def pushes(self) -> int:
        return self._pushes

    async def close(self) -> None:
        await super().close()
        self.memory.close()

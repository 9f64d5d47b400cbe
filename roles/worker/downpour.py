"""Fetch and push in the background of compute: the two network activities of Downpour (DistBelief 4.1, Adam 3.2.6).

All of it runs on the event loop's thread, except the installation of many fetched parameters: a pass over memory that
runs in its own thread. At most one fetch is under way; requests that come meanwhile are served by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from adamctl.errors import RemoteError
from adamctl.kernels.operation import Array
from adamctl.roles.ps.client.parameter_client import Base as PushBase
from adamctl.roles.ps.client.parameter_client import ParameterClient, Place, PushSet
from adamctl.roles.worker.core.slots import Base, Slot
from adamctl.roles.worker.protocol import PushProtocol
from adamctl.roles.worker.replica import Replica
from adamctl.wire.constants import ErrorCode

INSTALL_HERE_BYTES_MAX = 1 << 20  # takes less time than waking a thread for it and being woken by it
MULTIPLY_HERE_MAX = 10_000_000  # multiply-adds: a fraction of a millisecond
STALENESS_MAX = 64  # the last entry of a histogram counts this and more


class Downpour:
    """The push and fetch activities of one replica.

    Attributes:
        updates: parameter updates acknowledged (k * M * N for factors, as in Adam 4.3.2).
        staleness: acknowledged shard pushes by staleness: pushes of other workers that were applied between the weights
            they were computed from and themselves; the last entry is STALENESS_MAX or more.
        ages: the same by age, which also counts this worker's own pushes.
        refused: shard pushes that a server refused, for example because they were not finite. If a server has forgotten
            this client, that is a failure: the replica rejoins the run under another name, with the servers'
            parameters.
        fetches, pushes: how many have completed.
    """

    def __init__(
        self,
        replica: Replica,
        client: ParameterClient,
        on_failure: Callable[[BaseException], None],
        protocol: PushProtocol | None = None,
        owned: Collection[int] | None = None,
    ) -> None:
        """Args:
        protocol: without one, tensors whose factors the replica keeps are pushed as factors.
        owned: the shards that it pushes; None: all.
        """
        self._owned = owned
        self._replica, self._client, self._on_failure = replica, client, on_failure
        self._protocol = protocol
        self._fetch_wanted = asyncio.Event()
        self._installer = ThreadPoolExecutor(1, thread_name_prefix="install")
        self._tasks: set[asyncio.Task[bool]] = set()
        self._siblings: dict[int, asyncio.Task[ParameterClient]] = {}
        self._fetching: asyncio.Task[bool] | None = None
        self._fresh: asyncio.Future[None] | None = None
        self.updates = 0
        self.staleness, self.ages = _histogram(), _histogram()
        self.refused = 0
        self.last_refusal = ""
        self.fetches = 0
        self.pushes = 0

    async def start(self) -> None:
        """Fetches the first parameters, then fetches whenever asked to."""
        await self._fetch()
        self._fetching = asyncio.create_task(self._guard(self._fetch_forever))

    def want_fetch(self) -> None:
        self._fetch_wanted.set()

    async def freshen(self) -> None:
        """Returns when a fetch that began after this call is installed; for a replica that continues after a pause."""
        if self._fresh is None:
            self._fresh = asyncio.get_running_loop().create_future()
        self.want_fetch()
        await asyncio.shield(self._fresh)

    def push(self, slot: Slot, place: Place | None = None, channel: int = 0) -> asyncio.Task[bool]:
        """Starts the push of an accrued gradient, as part of a step if `place` names one. The task ends with the
        answer.

        Its result is False if there was no answer: the push has failed, and `on_failure` is called. Parts of one step
        use different channels, so that none blocks another.
        """
        task = asyncio.create_task(self._guard(lambda: self._push(slot, place, channel)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def fetch(self) -> None:
        """Fetches and installs parameters. Do not call it while another fetch may be under way."""
        await self._fetch()

    async def settled(self) -> None:
        """Waits until every push that was started has been answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def snapshot(self, into: Array) -> None:
        """Pulls the servers' parameters as they are now, for an evaluation."""
        await self._client.pull(into, exact=True)

    async def close(self) -> None:
        for task in (*self._tasks, *([self._fetching] if self._fetching else [])):
            task.cancel()
        await asyncio.gather(*self._tasks, *([self._fetching] if self._fetching else []), return_exceptions=True)
        for making in self._siblings.values():
            making.cancel()
            for sibling in await asyncio.gather(making, return_exceptions=True):
                if isinstance(sibling, ParameterClient):
                    await sibling.close()
        self._installer.shutdown(wait=True)

    def take_staleness(self) -> tuple[int, ...]:
        """Returns the histogram since the last call, without trailing zeros."""
        taken, self.staleness = self.staleness, _histogram()
        return _without_tail(taken)

    def take_ages(self) -> tuple[int, ...]:
        """Like `take_staleness`, for ages."""
        taken, self.ages = self.ages, _histogram()
        return _without_tail(taken)

    async def _fetch_forever(self) -> None:
        while True:
            await self._fetch_wanted.wait()
            self._fetch_wanted.clear()
            fresh, self._fresh = self._fresh, None
            await self._fetch()
            if fresh is not None:
                fresh.set_result(None)

    async def _fetch(self) -> None:
        self._replica.fetch_started()
        pulled = await self._client.pull(self._replica.fetched)
        base = Base(pulled.pushes, pulled.sequences)
        if self._replica.weights.nbytes <= INSTALL_HERE_BYTES_MAX:
            self._replica.install(base)
        else:
            await asyncio.get_running_loop().run_in_executor(self._installer, self._replica.install, base)
        self.fetches += 1

    async def _push(self, slot: Slot, place: Place | None, channel: int) -> None:
        meets = slot.meets  # once the slot is acknowledged, it may be used for another gradient
        try:
            push_set = await self._push_set(slot)
            push_set.place = place
            client = self._client if channel == 0 else await self._sibling(channel)
            owned = self._owned
            pending = client.start_push(push_set) if owned is None else client.start_push(push_set, only=owned)
            slot.sequences = pending.sequences
            outcome = await pending
        finally:
            self._replica.acknowledged(slot)
            if self._replica.core.following is not None:
                self.want_fetch()
        self.pushes += 1
        self.updates += outcome.updates
        if self._replica.foresight is not None:
            self._replica.foresight.told([max(age - meets, 0) for age in outcome.ages])
        for counts, found in ((self.staleness, outcome.staleness), (self.ages, outcome.ages)):
            for pushes in found:
                counts[min(max(pushes, 0), STALENESS_MAX)] += 1
        for part in outcome.refused:
            if part.code == ErrorCode.CLIENT_EVICTED:  # all later pushes would be refused as well
                raise RemoteError(part.code, f"shard {part.shard}: {part.message}")
        if outcome.refused:
            self.refused += len(outcome.refused)
            self.last_refusal = str(outcome.refused[0])

    async def _sibling(self, channel: int) -> ParameterClient:
        if channel not in self._siblings:
            self._siblings[channel] = asyncio.create_task(self._make_sibling(channel))
        return await asyncio.shield(self._siblings[channel])

    async def _make_sibling(self, channel: int) -> ParameterClient:
        sibling = self._client.sibling(channel)
        try:
            await sibling.attach()
        except BaseException:
            await sibling.close()
            raise
        return sibling

    async def _push_set(self, slot: Slot) -> PushSet:
        chosen, layout = await self._chosen(slot), self._replica.layout
        base = None if slot.base is None else PushBase(slot.base.pushes, slot.base.sequences)
        push_set = PushSet(layout, slot.learning_rate, slot.steps, slot.examples, base)
        tensors = None if self._owned is None else {layout.shards[shard].tensor for shard in self._owned}
        for index, gradient in enumerate(self._replica.gradient_views(slot)):
            if index not in chosen and (tensors is None or index in tensors):
                push_set.gradient(index, gradient)
        for index, factors in self._replica.factors(slot).items():
            if index in chosen:
                push_set.factors(index, factors.errors, factors.activations)
        return push_set

    async def _chosen(self, slot: Slot) -> frozenset[int]:
        """Returns which tensors to push as factors; makes sure that all others have gradients."""
        protocol = self._protocol
        if protocol is None:
            return frozenset(self._replica.factor_tensors)
        prices = None if protocol.fixed else self._client.measured.prices(self._client.servers)
        protocol.weigh(asyncio.get_running_loop().time(), prices)
        chosen = protocol.factors
        if protocol.skips_gradients:
            for index in self._replica.factor_tensors:
                if index not in chosen:
                    await self._multiply(slot, index)
        return chosen

    async def _multiply(self, slot: Slot, index: int) -> None:
        """Computes a gradient that the steps left out from the factors they kept."""
        work = slot.examples * self._replica.layout.tensors[index].size
        if work <= MULTIPLY_HERE_MAX:
            self._replica.multiply_factors(slot, index)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._installer, self._replica.multiply_factors, slot, index)

    async def _guard(self, activity: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Runs an activity; returns whether it succeeded."""
        try:
            await activity()
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self._on_failure(failure)
            return False
        return True


def _histogram() -> list[int]:
    return [0] * (STALENESS_MAX + 1)


def _without_tail(counts: list[int]) -> tuple[int, ...]:
    while counts and not counts[-1]:
        counts.pop()
    return tuple(counts)

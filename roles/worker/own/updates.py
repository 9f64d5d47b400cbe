"""In place of pushes and fetches where a replica has no servers: gradients go into its own weights, one by one.

The thread that has computed a gradient applies it, while others read the weights (Adam 3.2.2). Members of a group have
a thread for that, which takes gradients in one order. One lock is held for each gradient, for each copy for an
evaluation, and for each shard of a checkpoint: as on servers, a checkpoint has each shard at one version.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from adamctl.kernels.operation import Array
from adamctl.net.transport import Request
from adamctl.roles.outgoing_file import OutgoingFile, Streams
from adamctl.roles.ps.client.own_parameters import OwnParameters
from adamctl.roles.ps.client.remote_checkpoint import Start
from adamctl.roles.rooted import Roots
from adamctl.roles.saving import answer_checkpoint
from adamctl.roles.worker.core.slots import Slot
from adamctl.roles.worker.downpour import STALENESS_MAX
from adamctl.roles.worker.replica import Replica
from adamctl.wire.messages import CheckpointFile, CheckpointRequest

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class OwnUpdates:
    """Has the methods and figures of `adamctl.roles.worker.downpour.Downpour` that a session needs."""

    def __init__(
        self,
        replica: Replica,
        parameters: OwnParameters,
        restore: Start,
        on_failure: Callable[[BaseException], None],
        parameters_only: bool = False,
    ) -> None:
        """`restore`: the checkpoint that the job begins from, "" if none; `parameters_only`: of it."""
        self._replica, self._parameters = replica, parameters
        self._start = restore, parameters_only
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="own-updates")
        self._tasks: set[asyncio.Task[bool]] = set()
        self._lock = threading.Lock()
        self._ages: dict[int, int] = {}
        self.updates = self.refused = self.fetches = self.pushes = 0
        self.last_refusal = ""

    async def start(self) -> None:
        """Sets the weights.

        Raises:
            DamagedDataError: the checkpoint to begin from is damaged, or belongs to another model.
        """
        weights, parameters = self._replica.weights, self._parameters
        await self._in_thread(lambda: parameters.begin(weights, *self._start))
        self._replica.contains(parameters.pushes)

    def want_fetch(self) -> None:
        """Nothing is to be fetched: the weights are the parameters."""

    async def freshen(self) -> None:
        """Likewise."""

    async def fetch(self) -> None:
        """Likewise."""

    def push(self, slot: Slot, place: object = None, channel: int = 0) -> asyncio.Task[bool]:
        """Applies an accrued gradient after those that came before; the task ends when that is done."""
        task = asyncio.create_task(self._push(slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Waits until every gradient is applied."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def snapshot(self, into: Array) -> None:
        """Copies the parameters as they are now, for an evaluation."""

        def copy() -> None:
            with self._lock:
                self._parameters.copy(into)

        await self._in_thread(copy)

    async def save(
        self, request: Request, message: CheckpointRequest, node: str, roots: Roots, streams: Streams
    ) -> None:
        """Answers a request for this member's part of a checkpoint, which `streams` expects.

        Training goes on between shards, as on servers.
        """
        parameters = self._parameters

        async def save(folder: int) -> tuple[CheckpointFile, ...]:
            return await self._in_thread(lambda: parameters.save(message.job, node, folder, self._lock))

        async def encode(file: OutgoingFile) -> tuple[CheckpointFile, ...]:
            if not parameters.owned:
                return ()
            encoder = parameters.encoder(message.job, node, file.write)
            for portion in parameters.portions():
                await self._in_thread(partial(parameters.encode, encoder, portion, self._lock))
                await file.offer()
            return (encoder.end(),)

        def stream() -> int:
            return streams.begin(request.connection_id, message.job, encode)

        try:
            await answer_checkpoint(request, message, node, _LOG, roots, save, stream)
        finally:
            streams.settle(request.connection_id)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)  # what it does may take long

    def take_staleness(self) -> tuple[int, ...]:
        """Returns how many shards were updated since the last call: nobody else pushes, so all of them by 0."""
        with self._lock:
            return (sum(self._ages.values()),) if self._ages else ()

    def take_ages(self) -> tuple[int, ...]:
        """Returns the same by age, in own pushes; to be called after `take_staleness`."""
        with self._lock:
            taken, self._ages = self._ages, {}
        return tuple(taken.get(age, 0) for age in range(max(taken) + 1)) if taken else ()

    def apply(self, slot: Slot) -> None:
        """Updates the weights by a slot's gradient. Any thread may call it; the slot is still in use afterwards."""
        replica, parameters = self._replica, self._parameters
        begun = 0 if slot.base is None else int(slot.base.pushes[0])
        with self._lock:
            age = min(max(parameters.pushes - begun, 0), STALENESS_MAX)
            refused = parameters.apply(replica.gradient(slot), slot.learning_rate)
            self.pushes += 1
            self.updates += parameters.updates_per_push
            self._ages[age] = self._ages.get(age, 0) + len(parameters.owned)
            if refused:
                self.refused += len(refused)
                self.last_refusal = f"shard {refused[0]}: the gradient holds NaN or infinite values"
            pushes = parameters.pushes
        replica.contains(pushes)

    async def _push(self, slot: Slot) -> bool:
        try:
            await self._in_thread(lambda: self.apply(slot))
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self._on_failure(failure)
            return False
        self._replica.acknowledged(slot)
        return True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

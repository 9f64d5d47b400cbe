"""Who computes bundles for a worker of a batch algorithm, and pushes what they find: the threads of this process.

Where a replica is a group of workers, all of its members do it together (`adamctl.roles.worker.partition.executor`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import numpy as np

from adamctl.errors import RemoteError
from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.operation import Array
from adamctl.model.layout import ParameterLayout
from adamctl.model.tally import Tally
from adamctl.roles.ps.client.parameter_client import BundleOutcome, ParameterClient
from adamctl.roles.worker.core.batches import parts_of
from adamctl.roles.worker.core.bundle_work import LOST, Held, Pull, weight_of
from adamctl.roles.worker.core.example_memory import Span
from adamctl.roles.worker.sandblaster.threads import Bundle, BundleDone, BundleThreads, HeldOut
from adamctl.roles.worker.whole_replica import Session
from adamctl.wire.constants import GRADIENT_REFUSED
from adamctl.wire.messages import EvaluateTask

JOIN_S = 30.0


class BundleExecutor(Protocol):
    """What a session has its bundles computed by. Methods are called on the event loop."""

    @property
    def parallel(self) -> int:
        """How many bundles it computes at a time."""
        ...

    @property
    def portions_done(self) -> int:
        """Of bundles, and parts of held-out examples; while it grows, there is progress."""
        ...

    def takes(self, done: Callable[[BundleDone], None]) -> None:
        """Says who is told, by any thread, of each bundle that is done or given up; call it before `start`."""
        ...

    def start(self) -> None: ...

    def reads(self, spans: Sequence[Span], dropped: Sequence[Span]) -> None:
        """Is told which examples are being read, and which ones are forgotten; `submit` comes with what was read."""
        ...

    async def pull(self, pull: Pull) -> Collection[int]:
        """Makes the parameters of an evaluation those of all bundles to come, while there is none.

        Returns the buckets that do not have the evaluation; if there are any, bundles must not come.
        """
        ...

    def submit(self, bundle: Bundle) -> None: ...

    async def push(self, held: Held, gradient: int) -> dict[int, int]:
        """Pushes what a bundle has found, and frees it; returns the code of each bucket that refused it.

        Raises:
            RemoteError: a server refused it with a code that nobody expects.
        """
        ...

    def free(self, gradient: int) -> None:
        """Forgets what a bundle has found."""
        ...

    async def snapshot(self) -> None:
        """Pulls the accepted parameters, for `evaluate`; bundles go on."""
        ...

    async def evaluate(self, task: EvaluateTask, images: Array, labels: Answers) -> list[Tally]:
        """Returns the summed loss of each part of the examples of a task, and how many are classified correctly.

        Args:
            images: [n, *input shape].
            labels: [n].
        """
        ...

    async def halt(self) -> None:
        """Stops after what is being computed; give all bundles up first."""
        ...

    def close(self) -> None:
        """Frees memory, when all else has ended."""
        ...

    def status(self) -> dict[str, object]:
        """Returns what status shows besides the session's own."""
        ...


class WholeExecutor:
    """The threads of this process, which holds the whole network."""

    def __init__(self, session: Session) -> None:
        assert session.network is not None and isinstance(session.parameters, ParameterClient)
        self.parallel, self._batch, self._parameters = session.threads, session.batch, session.parameters
        self._done: Callable[[BundleDone], None] = lambda done: None
        self.threads = BundleThreads(session.network, session.threads, lambda done: self._done(done))
        self._parameters.shared.add(self.threads.memory)
        self._network, self._snapshot, self._views = session.network, np.empty(0, np.float32), list[Array]()

    @property
    def portions_done(self) -> int:
        return self.threads.portions_done

    def takes(self, done: Callable[[BundleDone], None]) -> None:
        self._done = done

    def start(self) -> None:
        self.threads.start()

    def reads(self, spans: Sequence[Span], dropped: Sequence[Span]) -> None:
        """Nobody else needs examples."""

    async def pull(self, pull: Pull) -> Collection[int]:
        return await pull_vector(self._parameters, self.threads.parameters, pull)

    def submit(self, bundle: Bundle) -> None:
        self.threads.submit(bundle)

    async def push(self, held: Held, gradient: int) -> dict[int, int]:
        task = held.task
        try:
            outcome = await self._parameters.add_bundle(
                task.name.evaluation, task.name.bundle, weight_of(task, self._batch), self.threads.gradients[gradient]
            )
        finally:
            self.threads.free(gradient)
        return refused_by_bucket(self._parameters.layout, outcome)

    def free(self, gradient: int) -> None:
        self.threads.free(gradient)

    async def snapshot(self) -> None:
        if not len(self._snapshot):  # only a worker that evaluates needs it
            self._snapshot = np.empty(self._network.flat_size, np.float32)
            self._views = self._network.views(self._snapshot)
        await self._parameters.pull(self._snapshot)

    async def evaluate(self, task: EvaluateTask, images: Array, labels: Answers) -> list[Tally]:
        parts = [slice(*part) for part in parts_of(len(labels), self._batch)]
        return await asyncio.gather(*(self._evaluate(images[part], labels[part]) for part in parts))

    async def _evaluate(self, images: Array, labels: Answers) -> Tally:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Tally] = loop.create_future()
        put = partial(_settle, loop, found)
        self.threads.submit(HeldOut(self._views, images, labels, put))
        return await found

    async def halt(self) -> None:
        self.threads.stop()
        await asyncio.to_thread(self.threads.join, JOIN_S)

    def close(self) -> None:
        self.threads.memory.close()

    def status(self) -> dict[str, object]:
        return {}


def _settle(loop: asyncio.AbstractEventLoop, found: asyncio.Future[Tally], made: Tally | BaseException) -> None:
    """Called by a thread. Drops what comes after the loop was closed: the session is over."""

    def settle() -> None:
        if found.done():
            return
        if isinstance(made, BaseException):
            found.set_exception(made)
        else:
            found.set_result(made)

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


async def pull_vector(parameters: ParameterClient, into: Array, pull: Pull) -> list[int]:
    """Pulls the vector of an evaluation; returns the buckets that do not have it. Raises as `ParameterClient.pull`."""
    try:
        await parameters.pull(into, vector=pull.at, evaluation=pull.evaluation)
    except RemoteError as error:
        buckets = error.details.get("buckets")
        if error.code not in LOST or not isinstance(buckets, list) or not buckets:
            raise
        return buckets
    return []


def refused_by_bucket(layout: ParameterLayout, outcome: BundleOutcome) -> dict[int, int]:
    """Returns the code of each bucket that refused a bundle. Raises RemoteError for a code that nobody expects."""
    refused: dict[int, int] = {}
    for shard, (code, message) in outcome.refused.items():
        if code not in LOST and code not in GRADIENT_REFUSED:
            raise RemoteError(code, message)
        bucket = layout.bucket_of_shard[shard]
        if bucket not in refused or code in LOST:
            refused[bucket] = code
    return refused

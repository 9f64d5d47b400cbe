"""One replica that a test steps by hand, over servers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from adamctl.kernels.step.network import Context, Network
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.ps.client.parameter_client import PendingPush, Pulled, PushOutcome, PushSet
from adamctl.roles.worker.core.following import Following
from adamctl.roles.worker.core.foresight import Momentum
from adamctl.roles.worker.core.slots import Slot
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.replica import Replica

MODEL = Model((6,), (Dense(5, "relu"), Softmax(3)))
LAYOUT = build_layout(MODEL, 2)
SHARDS = len(LAYOUT.shards)
WEIGHTS = tuple(index for index, tensor in enumerate(LAYOUT.tensors) if tensor.name.endswith("weight"))
BATCH = 4


class ServersInMemory:
    """Plain SGD on one flat vector, and the answers a `ParameterClient` gives.

    Attributes:
        outcome: what every push is answered with.
        answer_pushes, answer_pulls: clear one, and answers wait until it is set again.
        failure: raised by whatever is asked for next.
    """

    def __init__(self) -> None:
        self.values = np.random.default_rng(1).standard_normal(LAYOUT.flat_size).astype(np.float32)
        self.pushed: list[PushSet] = []
        self.gradients: list[np.ndarray] = []
        self.pulls = 0
        self.outcome = PushOutcome((0,) * SHARDS, (), LAYOUT.parameter_count)
        self.failure: Exception | None = None
        self.answer_pushes, self.answer_pulls = asyncio.Event(), asyncio.Event()
        self.answer_pushes.set()
        self.answer_pulls.set()
        self._answers: list[asyncio.Task[PushOutcome]] = []

    def start_push(self, push: PushSet) -> PendingPush:
        if self.failure is not None:
            raise self.failure
        self.pushed.append(push)
        self.gradients.append(gradient_of(push))
        self.values -= np.float32(push.learning_rate) * self.gradients[-1]
        self._answers.append(asyncio.create_task(self._answer()))
        number = len(self.pushed)
        return PendingPush(number, push, np.full(SHARDS, number, np.int64), self._answers[-1])

    async def _answer(self) -> PushOutcome:
        await self.answer_pushes.wait()
        return self.outcome

    async def pull(self, into: np.ndarray, *, exact: bool = False) -> Pulled:
        if self.failure is not None:
            raise self.failure
        self.pulls += 1
        into[:] = self.values
        contained = np.full(SHARDS, len(self.pushed), np.int64)
        await self.answer_pulls.wait()
        return Pulled(np.arange(SHARDS), np.ones(SHARDS, np.int64), contained, contained, contained)


def gradient_of(push: PushSet) -> np.ndarray:
    """Returns a push as one flat gradient, factors multiplied out."""
    flat = np.zeros(LAYOUT.flat_size, np.float32)
    for index, update in push.updates.items():
        tensor = LAYOUT.tensors[index]
        values = update.values if update.activations is None else (update.values.T @ update.activations).reshape(-1)
        flat[tensor.offset : tensor.offset + tensor.size] = values
    return flat


@dataclass
class World:
    """One replica of one thread that a test steps by hand."""

    network: Network
    replica: Replica
    downpour: Downpour
    servers: ServersInMemory
    context: Context
    failures: list[BaseException] = field(default_factory=list)
    steps: int = 0

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        return batch(self.steps)

    def step(self, lr: float = 0.5, local_lr: float | None = None) -> Slot | None:
        """Trains on the next batch and starts what is due, as a session does; returns the slot if it was pushed."""
        assert self.replica.core.begin_step(0) is not None, "no slot is free: this would wait for ever"
        slot = self.replica.begin_step(0)
        assert slot is not None
        self.network.step(self.context, self.replica.weight_views, *self.batch())
        self.steps += 1
        local = local_lr if local_lr is not None else lr * self.replica.applies_locally
        actions = self.replica.end_step(0, slot, self.context, BATCH, lr, local)
        if actions.push is not None:
            self.downpour.push(actions.push)
        if actions.fetch:
            self.downpour.want_fetch()
        return actions.push

    async def until(self, reached: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not reached():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def drained(self) -> None:
        """Returns when every push is applied and parameters that contain them all are installed."""
        await self.downpour.settled()
        before = self.servers.pulls
        self.downpour.want_fetch()
        await self.until(lambda: self.downpour.fetches == self.servers.pulls > before)


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(number)
    return generator.standard_normal((BATCH, 6), np.float32), generator.integers(0, 3, BATCH).astype(np.int32)


@asynccontextmanager
async def world(
    n_push: int = 1,
    n_fetch: int = 1,
    factors: tuple[int, ...] = (),
    local: bool = True,
    start: bool = True,
    following: Following | None = None,
    foresight: Momentum | None = None,
) -> AsyncIterator[World]:
    network = Network(MODEL, BATCH, backend="numpy")
    replica = Replica(
        network, LAYOUT, 1, BATCH, n_push, n_fetch, factors, local, following=following, foresight=foresight
    )
    servers, failures = ServersInMemory(), []
    downpour = Downpour(replica, servers, failures.append)  # type: ignore[arg-type]
    try:
        if start:
            await downpour.start()
        yield World(network, replica, downpour, servers, network.context(), failures)
    finally:
        replica.stop()
        await asyncio.sleep(0)  # what was started last has begun before it is cancelled
        async with asyncio.timeout(10):
            await downpour.close()
        replica.memory.close()

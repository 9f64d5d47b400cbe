"""Client processes of the parameter server benchmark: they use the workers' client and push and pull at full speed.

A process holds one or more `ParameterClient`s, each with its own connections. It receives orders through its pipe and
answers with its results; every push covers the whole model, and two are in flight at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from adamctl.bench.child import Child, Pipe
from adamctl.bench.ps.job import FactorsSize, check_factors, check_weights, check_whole, factors, pattern
from adamctl.bench.role_processes import connect_store, role_hello
from adamctl.errors import AdamctlError, RunFailedError
from adamctl.kernels.operation import Array
from adamctl.model.wire_types import WireType
from adamctl.net.address import kind_named
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.roles.ps.client.parameter_client import ParameterClient, PendingPush, PushOutcome, PushSet

AHEAD = 2
"""Pushes in flight at a time: while one is being sent, the last parts of the previous one are applied and answered."""
ATTACH_S = 60.0
CALL_S = 300.0
WEIGHTS, FACTORS = "weights", "factors"


@dataclass(frozen=True)
class Order:
    """An order to a client process. `seconds` is its duration; with 0, everything is done once."""

    do: str
    seconds: float = 0.0
    every_element: bool = False
    pushes: int = 0


@dataclass
class Done:
    """The result of an order: counts over all clients of the process, and the total time.

    Attributes:
        pushes, pulls: completed.
        push_bytes, pull_bytes: bytes of values, as float32.
        updates: parameter updates that servers report as applied.
        push_latencies_s: time of each push, from its start until it is acknowledged.
        pushes_by_client: one number per client.
        cpu_s: processor time that the process took, user and system.
        transports: kinds of the connections it used: `shared`, `unix`, `tcp`.
    """

    seconds: float = 0.0
    pushes: int = 0
    pulls: int = 0
    push_bytes: int = 0
    pull_bytes: int = 0
    updates: int = 0
    push_latencies_s: list[float] = field(default_factory=list)
    pushes_by_client: list[int] = field(default_factory=list)
    cpu_s: tuple[float, float] = (0.0, 0.0)
    transports: frozenset[str] = frozenset()


class ClientProcess(Child):
    """One client process, attached to its jobs."""

    def __init__(
        self,
        controller: str,
        transport: str,
        number: int,
        jobs: tuple[str, ...],
        clients: int = 1,
        wire: WireType = "float32",
    ) -> None:
        """`number` distinguishes the processes of a benchmark; `jobs`: WEIGHTS, FACTORS or both."""
        super().__init__(_serve, controller, transport, number, jobs, clients, wire)

    def ready(self) -> None:
        """Waits until it is attached. Raises what attaching raised."""
        self.receive(ATTACH_S + CALL_S)

    def start(self, order: Order) -> None:
        self.send(order)

    def answered(self) -> bool:
        """Whether `finish` would return at once."""
        return self.has_message()

    def finish(self, order: Order) -> Done:
        """Returns the result of a started order. Raises the error that occurred in the process."""
        done = self.receive(order.seconds + CALL_S)
        assert isinstance(done, Done)
        return done


def all_do(clients: list[ClientProcess], order: Order) -> list[Done]:
    """Gives all processes an order at the same time and waits for all."""
    for client in clients:
        client.start(order)
    return [client.finish(order) for client in clients]


# --- in the process ---------------------------------------------------------------------------------------------------


def _serve(
    controller: str, transport: str, number: int, jobs: tuple[str, ...], clients: int, wire: WireType, pipe: Pipe
) -> None:
    run(_work(controller, transport, number, jobs, clients, wire, pipe))


async def _work(
    controller: str, transport: str, number: int, jobs: tuple[str, ...], count: int, wire: WireType, pipe: Pipe
) -> None:
    store = connect_store(controller)
    numbers = range(number * count, (number + 1) * count)
    clients = {job: [_Client(store, transport, job, one, wire) for one in numbers] for job in jobs}
    everyone = [client for of_job in clients.values() for client in of_job]
    try:
        await asyncio.gather(*(client.attach() for client in everyone))
        pipe.send("ready")
        # The pipe is read in a thread, so that the loop keeps serving its connections.
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            try:
                pipe.send(await _carry_out(order, clients))
            except AdamctlError as error:
                pipe.send(RunFailedError(f"client process {number}: {error}"))
    except AdamctlError as error:
        pipe.send(RunFailedError(f"client process {number}: {error}"))
    finally:
        for client in everyone:
            await client.close()
        await store.close()


async def _carry_out(order: Order, clients: dict[str, list[_Client]]) -> Done:
    job = FACTORS if order.do in ("factors", "check factors") else WEIGHTS
    process, done = psutil.Process(), Done()
    before, began = process.cpu_times(), time.perf_counter()
    await asyncio.gather(*(client.carry_out(order, began, done) for client in clients[job]))
    done.seconds = time.perf_counter() - began
    after = process.cpu_times()
    done.cpu_s = (after.user - before.user, after.system - before.system)
    done.transports = frozenset(kind for client in clients[job] for kind in client.transports())
    return done


class _Client:
    """One `ParameterClient` with the values it pushes and the memory it pulls into."""

    def __init__(self, store: Any, transport: str, job: str, number: int, wire: WireType) -> None:
        hello = role_hello("worker", f"bench-{number}", number + 1)
        self._job, self._wire = job, wire
        way = StreamTransport(kind=kind_named(transport))
        self._client = ParameterClient(way, lambda: hello, store, job, wire_push=wire, wire_pull=wire)
        self._push: PushSet | None = None
        self._into: Array | None = None
        self._factors = FactorsSize()
        self._bytes = 0

    def transports(self) -> Iterable[str]:
        """Returns the present kinds of its connections."""
        return self._client.transports().values()

    async def attach(self) -> None:
        await self._client.attach(deadline_s=ATTACH_S)
        layout = self._client.layout
        self._bytes = 4 * layout.parameter_count
        if self._job == FACTORS:
            outputs, inputs = layout.tensors[0].shape
            self._factors = FactorsSize(outputs, inputs, min(FactorsSize.examples, outputs))

    def _pushed(self) -> PushSet:
        if self._push is None:
            self._push = push_of(self._client, self._factors if self._job == FACTORS else None)
        return self._push

    async def carry_out(self, order: Order, began: float, done: Done) -> None:
        match order.do:
            case "push" | "factors":
                await self._pushes(order, began, done)
            case "pull":
                await self._pulls(order, began, done)
            case "both":
                await asyncio.gather(self._pushes(order, began, done), self._pulls(order, began, done))
            case "check weights":
                check_weights(self._client.layout, await self._pull(exact=True), order.pushes)
            case "check factors":
                check_factors(self._client.layout, await self._pull(exact=True), self._factors, order.pushes)

    async def _pushes(self, order: Order, began: float, done: Done) -> None:
        push, under_way = self._pushed(), deque[tuple[float, PendingPush]]()
        count = 0
        while True:
            while len(under_way) < AHEAD and (not count or time.perf_counter() - began < order.seconds):
                under_way.append((time.perf_counter(), self._client.start_push(push)))
                count += 1
            if not under_way:
                break
            started, pending = under_way.popleft()
            outcome = await acknowledged(pending)
            done.push_latencies_s.append(time.perf_counter() - started)
            done.updates += outcome.updates
        done.pushes += count
        done.pushes_by_client.append(count)
        done.push_bytes += count * self._bytes

    async def _pulls(self, order: Order, began: float, done: Done) -> None:
        while True:
            flat = await self._pull()
            done.pulls += 1
            done.pull_bytes += self._bytes
            check_whole(self._client.layout, flat, every_element=order.every_element, rounded=self._wire != "float32")
            if time.perf_counter() - began >= order.seconds:
                return

    async def _pull(self, *, exact: bool = False) -> Array:
        if self._into is None:
            self._into = self._client.shared.new_array(self._client.layout.flat_size)
        await self._client.pull(self._into, deadline_s=CALL_S, exact=exact)
        return self._into

    async def close(self) -> None:
        await self._client.close()


def push_of(client: ParameterClient, size: FactorsSize | None) -> PushSet:
    """Returns a client's push, created once and kept, as a worker keeps its accrued gradient.

    With a size, factors for the first tensor; without one, the pattern of weights for all tensors.
    """
    layout = client.layout
    push = PushSet(layout, 1.0)
    if size is not None:
        push.factors(0, *factors(size))
        return push
    flat = client.shared.new_array(layout.flat_size)
    flat[:] = pattern(layout.flat_size)
    for index, tensor in enumerate(layout.tensors):
        push.delta(index, flat[tensor.offset : tensor.offset + tensor.size])
    return push


async def acknowledged(pending: PendingPush, deadline_s: float = CALL_S) -> PushOutcome:
    """Waits for a push. Raises RunFailedError if a part of it was refused."""
    outcome = await pending.wait(deadline_s)
    if outcome.refused:
        raise RunFailedError(f"a push was refused: {outcome.refused[0]}")
    return outcome

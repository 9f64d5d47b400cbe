"""The server's core and apply threads without a network: the rate of applying alone.

Pushes are accepted as the server accepts them, with 1 or 8 deltas queued per shard, or as factors of a dense layer.
While one is applied the next waits. The byte model: n deltas are read once each and the values are read and written
once, so (n + 2) times the model's bytes move, at the rate of plain calls from memory to memory. Factors are compared
with half the rate of matrix products: a product's multiply and add is one update.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from adamctl.bench.child import Child, Pipe
from adamctl.bench.ps.job import FactorsSize, check_factors, check_weights, factors, factors_record, layout_of, pattern
from adamctl.config.records import LayoutRecord
from adamctl.errors import AdamctlError, RunFailedError
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.make import make_rule
from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.net.loop import run
from adamctl.roles.ps.apply.applier import ApplyThreads
from adamctl.roles.ps.core.instructions import AnswerAttach, AnswerPush, Apply, Instruction, Keep
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.memory_budget import side_by_side
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import AttachRequest, PushPart, PushRequest, PushSource

AHEAD = 2
QUEUED = 8
ANSWER_S = 120.0
_CLIENT = ("bench", 1)
_CONNECTION = 1
_JOB = "local"


@dataclass(frozen=True)
class LocalCase:
    """`deltas` queued per shard, or, with 0, a push of factors."""

    name: str
    deltas: int


CASES = (LocalCase("local, 1 delta", 1), LocalCase("local, 8 deltas", QUEUED), LocalCase("local, factors", 0))


@dataclass(frozen=True)
class LocalRate:
    """`bytes_per_s` by the byte model (0 for factors), `updates_per_s` as Adam 4.3.2 counts."""

    bytes_per_s: float
    updates_per_s: float


class LocalServer(Child):
    """A process with a server's core and apply threads."""

    def __init__(self, weights: LayoutRecord, size: FactorsSize, threads: int) -> None:
        super().__init__(_serve, weights, size, threads)

    def measure(self, case: LocalCase, seconds: float) -> LocalRate:
        """Applies for about that long, checks the sums, and returns the rate."""
        rate = self.ask((case, seconds), seconds + ANSWER_S)
        assert isinstance(rate, LocalRate)
        return rate


def _serve(weights: LayoutRecord, size: FactorsSize, threads: int, pipe: Pipe) -> None:
    while (order := pipe.recv()) is not None:
        case, seconds = order
        try:
            pipe.send(run(_measure(weights, size, threads, case, seconds)))
        except AdamctlError as error:
            pipe.send(RunFailedError(f"{case.name}: {error}"))


async def _measure(
    weights: LayoutRecord, size: FactorsSize, threads: int, case: LocalCase, seconds: float
) -> LocalRate:
    layout = layout_of(weights if case.deltas else factors_record(size, 1))
    server = _Server(layout, threads)
    try:
        request, body = _deltas(layout, case.deltas) if case.deltas else _factors(layout, size)
        for _ in range(AHEAD):
            server.push(request(), body)  # a warm-up: maps memory, compiles kernels
            await server.answer()
        pushes, under_way, began = AHEAD, 0, time.perf_counter()
        while under_way or time.perf_counter() - began < seconds:
            while under_way < AHEAD and time.perf_counter() - began < seconds:
                server.push(request(), body)
                pushes, under_way = pushes + 1, under_way + 1
            if under_way:
                await server.answer()
                under_way -= 1
        took = time.perf_counter() - began
        if case.deltas:
            check_weights(layout, server.values(), pushes * case.deltas)
        else:
            check_factors(layout, server.values(), size, pushes)
    finally:
        server.close()
    timed, parameters = pushes - AHEAD, layout.parameter_count
    per_push = case.deltas * parameters if case.deltas else size.updates
    moved = (case.deltas + 2) * parameters * ELEMENT_BYTES if case.deltas else 0
    return LocalRate(timed * moved / took, timed * per_push / took)


class _Server:
    """The work of `adamctl.roles.ps.server` between socket and core, for one client that is always connected."""

    def __init__(self, layout: ParameterLayout, threads: int) -> None:
        self._layout = layout
        self.core = ServerCore(threads, queue_bytes_max=1 << 62)
        self._job = Job(_JOB, layout, make_rule(RuleConfig("add")))
        for bucket in layout.buckets:
            self._job.begin(bucket.index, 1)
            shards = layout.shards_of(bucket)
            memory = side_by_side([np.zeros(shard.size, np.float32) for shard in shards])
            self._job.install(
                bucket, [ShardContent(s.index, values, []) for s, values in zip(shards, memory, strict=True)], threads
            )
        self.core.add_job(self._job)
        self._answers: deque[AnswerPush] = deque()
        self._answered = asyncio.Event()
        self._threads = ApplyThreads(threads, self._completed)
        attached = self.core.attach(None, _CONNECTION, _CLIENT, AttachRequest(_JOB, layout.hash), 0.0)
        assert isinstance(attached[0], AnswerAttach)

    def push(self, request: PushRequest, body: memoryview) -> None:
        self._carry_out(self.core.push(None, _CONNECTION, _CLIENT, request, body, time.monotonic()))

    async def answer(self) -> None:
        """Waits for the oldest push. Raises RunFailedError if a part of it was refused."""
        while not self._answers:
            self._answered.clear()
            await self._answered.wait()
        for result in self._answers.popleft().message.results:
            if result.code != ErrorCode.OK:
                raise RunFailedError(f"shard {result.shard}: {result.message}")

    def values(self) -> Array:
        """Returns all values as a flat vector."""
        flat = np.zeros(self._layout.flat_size, np.float32)
        for shard in self._layout.shards:
            flat[shard.offset : shard.offset + shard.size] = self._job.shards[shard.index].values.array
        return flat

    def close(self) -> None:
        self._threads.stop()

    def _completed(self, done: Apply) -> None:
        self._carry_out(self.core.completed(done.job, done.batches, time.monotonic()))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Apply):
                self._threads.submit(instruction)
            elif isinstance(instruction, AnswerPush):
                self._answers.append(instruction)
                self._answered.set()
            elif not isinstance(instruction, Keep):
                raise RunFailedError(f"the core answered with {instruction}")


class _Requests:
    """Makes requests with rising numbers, each with one part of every shard per source."""

    def __init__(self, layout: ParameterLayout, sources: list[tuple[PushSource, ...]]) -> None:
        self._sources = sources
        self._layout = layout
        self._pushed = 0

    def __call__(self) -> PushRequest:
        first, count = self._pushed + 1, len(self._sources)
        self._pushed += count
        tensors = len(self._layout.tensors)
        parts = [
            PushPart(shard.index, first + number, number * tensors + shard.tensor)
            for shard in self._layout.shards
            for number in range(count)
        ]
        flat = tuple(source for sources in self._sources for source in sources)
        epochs = {bucket.index: 1 for bucket in self._layout.buckets}
        return PushRequest(_JOB, epochs, 1.0, 1, 1, flat, tuple(parts))


def _deltas(layout: ParameterLayout, count: int) -> tuple[_Requests, memoryview]:
    flat_bytes = layout.flat_size * ELEMENT_BYTES
    body = np.concatenate([pattern(layout.flat_size)] * count)
    sources = [
        tuple(
            PushSource(UpdateKind.DELTA, index, 0, t.shape[0], number * flat_bytes + t.offset * ELEMENT_BYTES)
            for index, t in enumerate(layout.tensors)
        )
        for number in range(count)
    ]
    return _Requests(layout, sources), _bytes(body)


def _factors(layout: ParameterLayout, size: FactorsSize) -> tuple[_Requests, memoryview]:
    errors, activations = factors(size)
    source = PushSource(UpdateKind.FACTORS, 0, 0, size.outputs, 0, size.examples, errors.nbytes)
    return _Requests(layout, [(source,)]), _bytes(np.concatenate([errors.reshape(-1), activations.reshape(-1)]))


def _bytes(array: Any) -> memoryview:
    return memoryview(array).cast("B")

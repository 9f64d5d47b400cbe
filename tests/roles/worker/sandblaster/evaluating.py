"""Workers of a batch algorithm on a cluster in memory: real servers and data; the test plays the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from adamctl.config.data import DataConfig
from adamctl.errors import UnreachableError
from adamctl.kernels.step.network import Network
from adamctl.model.commands import Reduce, Set
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.service.config import lease_config
from adamctl.roles.coordinator.core.bundles import Bundle, BundleBook, Given
from adamctl.roles.data import server as data_server
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.ps.client.parameter_client import ParameterClient, numbers_of
from adamctl.roles.worker.core.bundle_work import stage_of
from adamctl.roles.worker.sandblaster.session import SandblasterRunner
from adamctl.roles.worker.whole_replica import Session
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    BundleName,
    BundleReport,
    BundleTask,
    EvaluateTask,
    NextBundlesReply,
    NextBundlesRequest,
    NextTaskReply,
    NextTaskRequest,
    TaskReport,
)
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import add_job, make_client
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.vector_harness import READ_SUM, RULE, dot

JOB = "a"
MODEL = Model((8,), (Dense(12, "relu"), Softmax(5)))
"""Its layout is that of `ps_cluster.SMALL`."""
EXAMPLES, BATCH, PER_BUNDLE = 86, 4, 12
BUNDLES = [
    Bundle(number, start, min(start + PER_BUNDLE, EXAMPLES))
    for number, start in enumerate(range(0, EXAMPLES, PER_BUNDLE))
]
FOUND = [READ_SUM, dot("h", "h"), Reduce("sum", (("h",),)), Reduce("max_abs", (("h",),)), dot("h", "t")]
ENOUGH_S = 30


@dataclass
class Coordinator:
    """Hands bundles out with the coordinator's own book, and takes reports. Its workers ask it without a network.

    Attributes:
        reports, requests: all there were.
        ahead: what workers are told to read ahead.
    """

    vectors: Any
    book: BundleBook = field(default_factory=lambda: BundleBook(BUNDLES))
    reports: list[BundleReport] = field(default_factory=list)
    requests: list[NextBundlesRequest] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)
    ahead: bool = False
    ended: bool = False
    to_evaluate: list[EvaluateTask] = field(default_factory=list)
    evaluated: list[TaskReport] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    gone: bool = False
    open: bool = False
    reopening: asyncio.Task[None] | None = None
    round_number: int = 0
    commits: int = 0
    step: float = 0.0
    on_report: Callable[[BundleReport], None] = lambda report: None
    _last: dict[tuple[str, int], int] = field(default_factory=dict)
    _news: dict[tuple[str, int], list[BundleName]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def next_bundles(self, request: NextBundlesRequest) -> NextBundlesReply:
        self.requests.append(request)
        key, loop = (request.node, request.incarnation), asyncio.get_running_loop()
        self._news.setdefault(key, [])
        number = self._last[key] = self._last.get(key, 0) + 1
        for report in request.reports:
            self._take(key, report)
        self.lost += request.lost_buckets
        now = self.book.evaluation
        given_up = {stage_of(report.name) for report in request.reports if report.code == ErrorCode.ABANDONED}
        if request.lost_buckets and now and (now.number, now.attempt) in given_up:
            self.open = False
            self.reopening = asyncio.create_task(self._reopen(request.lost_buckets))
        if request.leaving:
            self.book.lose(key)
            self._news.pop(key)
        await self.tell()
        until_s = loop.time() + request.wait_s
        while True:
            if self.gone:
                raise UnreachableError("the coordinator is gone")
            if self._last[key] != number:  # the worker has asked again
                return NextBundlesReply()
            reply = self._reply(key, request.wanted)
            if reply.tasks or reply.cancelled or reply.ended or loop.time() >= until_s:
                return reply
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):  # `wait_for` may lose that it is cancelled
                    await self._changed.wait()

    async def next_tasks(self, request: NextTaskRequest) -> NextTaskReply:
        """Gives out ranges of the test part, and tells the end of the run."""
        self.evaluated += request.reports
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_s
        await self.tell()
        while not (self.ended or self.gone or self.to_evaluate) and loop.time() < until_s:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):  # `wait_for` may lose that it is cancelled
                    await self._changed.wait()
        if self.gone:
            raise UnreachableError("the coordinator is gone")
        tasks, self.to_evaluate = self.to_evaluate[: request.wanted], self.to_evaluate[request.wanted :]
        return NextTaskReply((), tuple(tasks), ended=self.ended, reason="enough" if self.ended else "")

    async def leave(self, node: str, incarnation: int, reports: Any = (), *, group_epoch: int = 0) -> None:
        self.left.append(node)

    def _take(self, key: tuple[str, int], report: BundleReport) -> None:
        self.reports.append(report)
        self.on_report(report)
        name = report.name
        given = Given(name.evaluation, name.attempt, BUNDLES[name.bundle])
        if report.code == ErrorCode.OK:
            counted = self.book.done(key, given, report.loss_sum, asyncio.get_running_loop().time())
            for loser in counted.losers:
                self._news[loser].append(name)
        elif report.code != ErrorCode.ABANDONED:
            self.codes.add(report.code)

    def _reply(self, key: tuple[str, int], wanted: int) -> NextBundlesReply:
        tasks: list[BundleTask] = []
        while self.open and len(tasks) < wanted:
            given = self.book.take(key, asyncio.get_running_loop().time())
            if given is None:
                break
            bundle = given.bundle
            name = BundleName(given.evaluation, given.attempt, bundle.number)
            tasks.append(BundleTask(name, bundle.start, bundle.stop, bundle.examples / EXAMPLES, "t"))
        cancelled = tuple(self._news.get(key, ()))
        self._news[key] = []
        ahead = tuple((bundle.start, bundle.stop) for bundle in BUNDLES[:2]) if self.ahead else ()
        return NextBundlesReply(tuple(tasks), cancelled, ahead, ended=self.ended, reason="enough" if self.ended else "")

    async def tell(self) -> None:
        """Wakes all who wait; whoever looks and then waits, without a pause between the two, misses nothing."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- evaluations --------------------------------------------------------------------------------------------------

    async def round(self, commands: Any, evaluation: int = 0) -> Any:
        self.round_number += 1
        return await self.vectors.round(self.round_number, commands, evaluation=evaluation)

    async def begin(self, evaluation: int, fraction_bits: int = 40) -> None:
        """Opens an evaluation at a point of its own, and lets workers have it."""
        await self.round([Set("t", ((1.0 + 0.25 * evaluation, "x"),))])
        await self.vectors.evaluate(evaluation, "t", fraction_bits, len(BUNDLES))
        self.book.begin(evaluation, list(self._news))
        self.open = True
        await self.tell()

    async def commit_half(self) -> None:
        """Makes the accepted parameters half of what they are."""
        self.commits += 1
        await self.vectors.commit(self.commits, [Set("x", ((0.5, "x"),))])

    async def _reopen(self, buckets: tuple[int, ...]) -> None:
        """Makes the point of the evaluation again where it was lost, and has all bundles done again."""
        now = self.book.evaluation
        assert now is not None
        self.round_number += 1
        commands = [Set("t", ((1.0 + 0.25 * now.number, "x"),))]
        await self.vectors.round(self.round_number, commands, buckets=buckets)
        await self.vectors.evaluate(now.number, "t", 40, len(BUNDLES), buckets=buckets)
        self.book.again(list(self._news))
        self.open = True
        await self.tell()

    async def complete(self) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while not self.book.is_complete:
                await self._changed.wait()

    async def evaluate(self, evaluation: int) -> tuple[float, ...]:
        """Returns the loss, and numbers that the gradient decides."""
        await self.begin(evaluation)
        await self.complete()
        return await self.found(evaluation)

    async def found(self, evaluation: int) -> tuple[float, ...]:
        self.open = False
        answer = await self.round(FOUND, evaluation)
        assert not answer.refused, answer.refused
        return self.book.loss_sum, *numbers_of(FOUND, answer)

    async def end(self) -> None:
        self.ended = True
        await self.tell()


@dataclass
class World:
    """What workers need, and those that run."""

    servers: ReplicatedCluster
    coordinator: Coordinator
    source: str
    running: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    runners: dict[str, SandblasterRunner] = field(default_factory=dict)
    stops: dict[str, asyncio.Event] = field(default_factory=dict)
    reads: list[tuple[int, int]] = field(default_factory=list)
    clients: list[ParameterClient] = field(default_factory=list)
    _data: list[DataClient] = field(default_factory=list)

    async def start_worker(self, name: str, threads: int = 1, **options: Any) -> SandblasterRunner:
        parameters = await make_client(self.servers.cluster, JOB, name, attempt_s=1.0)
        context = self.servers.cluster.contexts[name]
        data = DataClient.from_context(context, ["data-0"])
        dataset = await data.open(DataConfig(format="npz", source=self.source, scale="none"), MODEL.input, 1)
        self.clients.append(parameters)
        self._data.append(data)
        read = data.read

        def note(*arguments: Any, **named: Any) -> Any:
            self.reads.append((arguments[3], arguments[4]))
            return read(*arguments, **named)

        data.read = note  # type: ignore[method-assign]
        experiment: Any = SimpleNamespace()
        coordinator: Any = self.coordinator
        session = Session(
            JOB, name, context.incarnation, experiment, dataset, Network(MODEL, BATCH, backend="numpy"), BATCH,
            parameters.layout, threads, 1, coordinator, parameters, data, logging.getLogger(name),
        )  # fmt: skip
        runner = self.runners[name] = SandblasterRunner(session, **options)
        self.stops[name] = asyncio.Event()
        self.running[name] = asyncio.create_task(runner.run(self.stops[name]))
        return runner

    async def close(self) -> None:
        for stop in self.stops.values():
            stop.set()
        await asyncio.gather(*self.running.values(), return_exceptions=True)
        for client in (*self.clients, *self._data):
            await client.close()


def make_data(folder: Path) -> str:
    generator = np.random.default_rng(8)
    path = folder / "points.npz"
    images = generator.standard_normal((EXAMPLES, *MODEL.input)).astype(np.float32)
    labels = generator.integers(0, 5, EXAMPLES)
    np.savez(path, x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    return str(path)


@asynccontextmanager
async def world(folder: Path, servers: int = 1, copies: int = 1, rule: RuleConfig = RULE) -> AsyncIterator[World]:
    names = [f"ps-{number}" for number in range(servers)]
    async with memory_cluster(seed=6, config=lease_config(1.0, None)) as cluster:
        replicated = ReplicatedCluster(cluster)
        await replicated.start(*names)
        if copies > 1:
            await replicated.add_job(names, rule, copies=copies)
        else:
            await add_job(cluster, JOB, names, rule)
        await cluster.start("data", "data-0", data_server.run, {"threads": 1})
        client: ParameterClient = await make_client(cluster, JOB, "c-0", role="coordinator", attempt_s=1.0)
        made = World(replicated, Coordinator(client.vectors), make_data(folder))
        try:
            yield made
        finally:
            await made.close()
            await client.close()

"""How long a parameter server and the coordinator's client take over an iteration of L-BFGS, between evaluations.

A real server process, the coordinator's own `BatchService` and client in this process, and a worker that does next to
nothing: it evaluates a quadratic in one bundle. What is timed runs from the report of a batch's last bundle to the
first bundle of the next evaluation: R1, the commit, R3, opening the evaluation, and all that the program computes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from adamctl.bench.ps.cluster import PsCluster
from adamctl.bench.role_processes import connect_store, role_hello
from adamctl.config.records import LayoutRecord
from adamctl.errors import RunFailedError
from adamctl.kernels.array import Array
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import ParameterLayout, build_layout
from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.roles.coordinator.batch_service import BatchService
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.bundles import Bundle
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BundleReport, NextBundlesRequest

JOB = "rounds"
PIXELS, CLASSES = 64, 10
CURVATURES = (1e-4, 1.0)
"""Least and largest of the quadratic: so far apart that it has no minimum within some hundred iterations."""
ATTACH_S, WAIT_S, RUN_S = 60.0, 10.0, 300.0


class RoundsTime(NamedTuple):
    """Seconds between two evaluations with an accepted point between them, once the history is full.

    Attributes:
        iterations: that were timed.
        p10_s, p90_s: a tenth of them took no longer, and no less.
    """

    parameters: int
    iterations: int
    median_s: float
    p10_s: float
    p90_s: float


def measure_server_rounds(parameters: int = 10_000, iterations: int = 60, history: int = 10) -> RoundsTime:
    """Runs L-BFGS on a server process.

    Args:
        parameters: about; those of a perceptron on 8 x 8 images.
        iterations: with a full history.

    Raises:
        RunFailedError: the server did not start, or the program ended before that many iterations.
    """

    def start(progress: Progress | None) -> Execution:
        settings = LBFGSSettings(history=history, gradient_tolerance=0.0, change_tolerance=0.0)
        return Execution(lbfgs, settings, committed=progress)

    hidden = max(round((parameters - CLASSES) / (PIXELS + 1 + CLASSES)), 1)
    layout = build_layout(Model((PIXELS,), (Dense(hidden), Softmax(CLASSES))), 1)
    execution = start(None)
    rule = RuleConfig(VECTORS, kept=execution.kept[1:], scratch=execution.scratch)
    with PsCluster(1, 1) as cluster:
        layout = cluster.create_job(JOB, LayoutRecord(layout.tensors, 1), rule=rule, coordinator="bench-coordinator")
        seconds = run(_iterate(cluster.controller, layout, start, history + iterations))[history:]
    if len(seconds) < iterations:
        raise RunFailedError(f"expected {iterations} iterations with a full history; found {len(seconds)}")
    return RoundsTime(
        layout.parameter_count, len(seconds), statistics.median(seconds),
        *(float(np.quantile(seconds, share)) for share in (0.1, 0.9)),
    )  # fmt: skip


async def _iterate(controller: str, layout: ParameterLayout, start: Any, iterations: int) -> list[float]:
    """Returns the time of each iteration."""
    store, clients = connect_store(controller), list[ParameterClient]()
    try:
        for number, role in enumerate(("coordinator", "worker"), 1):
            hello = role_hello(role, f"bench-{role}", number)
            client = ParameterClient(StreamTransport(), lambda hello=hello: hello, store, JOB)  # type: ignore[misc]
            await client.attach(deadline_s=ATTACH_S)
            clients.append(client)
        coordinator, worker = clients
        job = BatchJob("lbfgs", start, (Bundle(0, 0, 1),), len(layout.buckets))
        evaluator = _Evaluator(worker, layout.flat_size, iterations)
        service = BatchService(job, coordinator.vectors, lambda progress: evaluator.committed())
        return await _work_beside(service, evaluator)
    finally:
        for client in clients:
            await client.close()
        await store.close()


async def _work_beside(service: BatchService, evaluator: _Evaluator) -> list[float]:
    """Returns the time of each iteration, once there are enough of them or the program has stopped.

    Raises:
        RunFailedError: the service failed.
    """
    running = asyncio.create_task(service.carry_out())
    try:
        async with asyncio.timeout(RUN_S):
            if not await evaluator.work(service):
                await running
            return evaluator.seconds
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Evaluator:
    """The only worker: it evaluates a quadratic, and notes the time between evaluations."""

    def __init__(self, client: ParameterClient, size: int, iterations: int) -> None:
        self._client, self._wanted = client, iterations
        self._curvatures = np.geomspace(*CURVATURES, size)
        self._at = np.zeros(size, np.float32)
        self._committed = 0
        self.seconds: list[float] = []

    def committed(self) -> None:
        self._committed += 1

    async def work(self, service: BatchService) -> bool:
        """Notes the seconds between evaluations between which one point was accepted.

        Returns whether they are as many as wanted; if not, the service has ended.
        """
        reports: tuple[BundleReport, ...] = ()
        while len(self.seconds) < self._wanted:
            reported_s, before = time.perf_counter(), self._committed
            reply = await service.next_bundles(NextBundlesRequest("bench-worker", 1, 1, WAIT_S, reports))
            given_s = time.perf_counter()
            if reports and reply.tasks and self._committed == before + 1:
                self.seconds.append(given_s - reported_s)
            if reply.ended or reply.drain:
                return False
            reports = tuple([await self._evaluate(task) for task in reply.tasks])
        return True

    async def _evaluate(self, task: Any) -> BundleReport:
        name = task.name
        await self._client.pull(self._at, vector=task.at, evaluation=name.evaluation)
        loss, gradient = self._quadratic(self._at)
        outcome = await self._client.add_bundle(name.evaluation, name.bundle, task.weight, gradient)
        if outcome.refused:
            raise RunFailedError(f"the server has refused a gradient: {outcome.refused}")
        return BundleReport(name, ErrorCode.OK, loss, 1)

    def _quadratic(self, x: Array) -> tuple[float, Array]:
        """Without BLAS, whose threads would go on waiting for work in the time that is measured."""
        off = x.astype(float) - 1.0
        gradient = self._curvatures * off
        return 0.5 * float(np.sum(off * gradient)), gradient.astype(np.float32)

"""A coordinator on an in-memory cluster with real servers and played workers, for the tests of its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from adamctl.config.data import DataConfig
from adamctl.config.experiment import ClusterConfig, Experiment, TrainConfig
from adamctl.model.description import Dense, Model, Softmax
from adamctl.roles.coordinator import server
from adamctl.roles.coordinator.client import CoordinatorClient, Joined
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.data import server as data_server
from adamctl.roles.ps import server as ps_server
from adamctl.wire.messages import EvaluateTask, NextTaskRequest, TaskReport
from tests.cluster import ClusterInMemory, memory_cluster

EXAMPLES, TEST_EXAMPLES, CLASSES = 96, 40, 4


def make_experiment(folder: Path, *, train: dict[str, Any] | None = None, **cluster: Any) -> Experiment:
    """Four classes of eight features; the data are written beside the run."""
    path = folder / "data.npz"
    if not path.exists():
        random = np.random.default_rng(3)
        counts = {"train": EXAMPLES, "test": TEST_EXAMPLES}
        arrays = {f"x_{split}": random.random((n, 8)).astype(np.float32) for split, n in counts.items()}
        arrays |= {f"y_{split}": np.arange(n) % CLASSES for split, n in counts.items()}
        np.savez(path, **arrays)
    settings = {"passes": 2, "batch": 4, "range_batches": 2, "evaluate_every": 1.0} | (train or {})
    return Experiment(
        name="small",
        model=Model(input=(8,), layers=(Dense(6, "relu"), Softmax(CLASSES))),
        data=DataConfig(format="npz", source=str(path), scale="none"),
        train=TrainConfig(**settings),
        cluster=ClusterConfig(**cluster),
    )


class PlayedWorker:
    """Reports every task as done at once, without training anything."""

    def __init__(self, client: CoordinatorClient, node: str, incarnation: int, correct_share: float = 0.5) -> None:
        self.client, self.node, self.incarnation = client, node, incarnation
        self.correct_share = correct_share
        self.joined: Joined
        self.reason = ""
        self.ranges: list[tuple[int, int, int]] = []

    async def join(self) -> None:
        self.joined = await self.client.join(self.node, self.incarnation, 2)

    async def ask(self, reports: tuple[TaskReport, ...] = (), wanted: int = 3, wait_s: float = 5.0) -> Any:
        return await self.client.next_tasks(
            NextTaskRequest(self.node, self.incarnation, reports, wanted, wait_s, 100, (3, 1) if reports else ())
        )

    async def work(self) -> str:
        """Works until the run is over; returns the reason."""
        reports: tuple[TaskReport, ...] = ()
        while True:
            reply = await self.ask(reports)
            if reply.ended:
                return str(reply.reason)
            reports = tuple(self._report(task) for task in (*reply.train, *reply.evaluate))

    def _report(self, task: Any) -> TaskReport:
        count = task.stop - task.start
        if isinstance(task, EvaluateTask):
            return TaskReport(task.id, count, 0.5 * count, round(self.correct_share * count), 0, 0.1, 0.0)
        self.ranges.append((task.pass_number, task.start, task.stop))
        return TaskReport(task.id, count, 0.5 * count, 0, count // 4, 0.1, 0.0)


class World:
    """A cluster with servers, and what a test needs to start runs and workers on it."""

    def __init__(self, cluster: ClusterInMemory, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.clients: list[CoordinatorClient] = []
        self.count = 0

    async def start_servers(self, parameter: int = 1, data: int = 1) -> None:
        for number in range(parameter):
            await self.cluster.start("ps", f"ps-{number}", ps_server.run, {"apply_threads": "1"})
        for number in range(data):
            await self.cluster.start("data", f"data-{number}", data_server.run, {"threads": 1})

    async def start_run(
        self, experiment: Experiment, run: str = "001", node: str = "coordinator", **options: object
    ) -> Path:
        """Starts a coordinator; returns its run folder."""
        folder = self.folder / run
        file = self.folder / f"{run}.json"
        file.write_bytes(msgspec.json.encode(experiment))
        given = {"experiment": str(file), "run_dir": str(folder), "wait": 20.0, "job": None, "resume": "none"} | options
        await self.cluster.start("coordinator", node, server.run, given)
        return folder

    async def client(self, node: str = "coordinator") -> CoordinatorClient:
        self.count += 1
        context = await self.cluster.context("front", f"front-{self.count}")
        client = CoordinatorClient(await context.connect(node, 10.0))
        self.clients.append(client)
        return client

    async def worker(self, node: str = "coordinator", name: str = "", **options: float) -> PlayedWorker:
        """Joins as soon as the run takes workers."""
        front = await self.client(node)
        context = await self.cluster.context("worker", name or f"worker-{self.count}")
        context.incarnation = 1000 + self.count
        client = CoordinatorClient(await context.connect(node, 10.0))
        self.clients.append(client)
        worker = PlayedWorker(client, context.node, context.incarnation, **options)
        await until(front, lambda progress: progress.state != "starting")
        await worker.join()
        return worker

    async def ended(self, node: str = "coordinator") -> None:
        """Waits for a coordinator's process to end and raises what it ended with."""
        async with asyncio.timeout(120):
            await self.cluster.tasks[node]

    async def close(self) -> None:
        for client in self.clients:
            await client.close()


def heard(progress: RunProgress, words: str) -> int:
    return sum(words in message for message in progress.messages)


async def until(client: CoordinatorClient, reached: Callable[[RunProgress], object]) -> RunProgress:
    async with asyncio.timeout(120):
        while True:
            progress = await client.status()
            if reached(progress):
                return progress
            assert progress.state != "failed", f"it has failed, and never comes to that; it said {progress.messages}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with memory_cluster(seed=5) as cluster:
        made = World(cluster, folder)
        try:
            yield made
        finally:
            await made.close()
            for node, task in list(cluster.tasks.items()):
                if node.startswith("coordinator") and task.done():  # its failure is what a test expects
                    cluster.tasks.pop(node)
                    task.exception()

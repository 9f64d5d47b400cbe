"""Whole runs inside one event loop: every role real, over the in-memory network, on a problem of a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig, TrainConfig
from adamctl.errors import AdamctlError, ConfigurationError, UnreachableError
from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator import server as coordinator_server
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.data import server as data_server
from adamctl.roles.ps import server as ps_server
from adamctl.roles.worker import server
from adamctl.roles.worker.core.slots import Slot
from adamctl.roles.worker.divergence import DivergedError
from adamctl.roles.worker.downpour import Downpour
from tests.cluster import ClusterInMemory, memory_cluster

EXAMPLES, TEST_EXAMPLES, CLASSES, FEATURES = 240, 80, 4, 12
ENOUGH_S = 60
CHANCE = 1 / CLASSES


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_KERNELS", "numpy")


def make_experiment(folder: Path, *, train: dict[str, Any] | None = None, **cluster: Any) -> Experiment:
    """Four heaps of points that a small network tells apart after a few passes; a new one for each folder."""
    path = folder / "heaps.npz"
    if not path.exists():
        random = np.random.default_rng(3)
        centres = random.standard_normal((CLASSES, FEATURES))
        arrays = {}
        for split, count in (("train", EXAMPLES), ("test", TEST_EXAMPLES)):
            labels = np.arange(count) % CLASSES
            noise = 0.4 * random.standard_normal((count, FEATURES))
            arrays |= {f"x_{split}": (centres[labels] + noise).astype(np.float32), f"y_{split}": labels}
        np.savez(path, **arrays)
    settings = {"passes": 2, "batch": 8, "range_batches": 3, "pass_fraction": 1.0} | (train or {})
    return Experiment(
        name="heaps",
        model=Model((FEATURES,), (Dense(8, "relu"), Softmax(CLASSES))),
        data=DataConfig(format="npz", source=str(path), scale="none"),
        optimizer=OptimizerConfig(lr=0.1),
        train=TrainConfig(**settings),
        cluster=ClusterConfig(**cluster),
    )


class World:
    """A cluster on which runs are started and watched to their end."""

    def __init__(self, cluster: ClusterInMemory, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._watching: list[CoordinatorClient] = []

    async def start_worker(self, name: str, **options: Any) -> RoleContext:
        return await self.cluster.start("worker", name, server.run, {"threads": 1, **options})

    async def start_run(self, experiment: Experiment, run: str = "001") -> str:
        """Starts a coordinator; returns the name of its node."""
        file, node = self.folder / f"{run}.json", f"coordinator-{run}"
        file.write_bytes(msgspec.json.encode(experiment))
        options = {"experiment": str(file), "run_dir": str(self.folder / run), "wait": 20.0}
        options |= {"job": None, "resume": "none"}
        await self.cluster.start("coordinator", node, coordinator_server.run, options)
        return node

    async def watch(self, node: str) -> CoordinatorClient:
        context = await self.cluster.context("front", f"front-{len(self._watching)}")
        self._watching.append(CoordinatorClient(await context.connect(node, 10.0)))
        return self._watching[-1]

    async def summary(self, node: str = "coordinator-001") -> dict[str, Any]:
        """Waits for the end of a run and returns its "Numbers programs read"."""
        async with asyncio.timeout(ENOUGH_S):
            await self.cluster.tasks[node]
        return dict(json.loads((self.folder / node.removeprefix("coordinator-") / "summary.json").read_text()))

    async def close(self) -> None:
        for client in self._watching:
            await client.close()


async def until(client: CoordinatorClient, examples: int) -> RunProgress:
    async with asyncio.timeout(ENOUGH_S):
        while (progress := await client.status()).examples < examples:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return progress


@asynccontextmanager
async def world(folder: Path, servers: int = 1, workers: int = 1) -> AsyncIterator[World]:
    async with memory_cluster(seed=5) as cluster:
        made = World(cluster, folder)
        for number in range(servers):
            await cluster.start("ps", f"ps-{number}", ps_server.run, {"apply_threads": "1"})
        await cluster.start("data", "data-0", data_server.run, {"threads": 1})
        for number in range(workers):
            await made.start_worker(f"worker-{number}")
        try:
            yield made
        finally:
            await made.close()


def check(summary: dict[str, Any], passes: int = 2, workers: int = 1) -> None:
    """What every run here must have done: all of its examples once, and learnt."""
    assert summary["examples"] == passes * EXAMPLES
    assert summary["test_top1"] > 2 * CHANCE
    assert summary["roles"]["worker"] == workers
    assert summary["updates"] > 0


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"n_push": 4, "n_fetch": 3},
        {"n_push": 1000, "n_fetch": 1000},  # all that the servers get is what is left over at the end of a pass
        {"protocol": "factors", "n_push": 2},
        {"protocol": "gradient", "local_lr": 0.0},
        {"protocol": "factors", "local_lr": 0.0},
        {"wire_push": "bfloat16", "wire_pull": "bfloat16"},
        {"protocol": "factors", "wire_push": "float16", "wire_pull": "float16"},
    ],
    ids=str,
)
async def test_a_run_ends_and_has_learnt(tmp_path: Path, train: dict[str, Any]) -> None:
    async with world(tmp_path) as w:
        check(await w.summary(await w.start_run(make_experiment(tmp_path, train=train))))


async def test_two_workers_and_two_servers(tmp_path: Path) -> None:
    async with world(tmp_path, servers=2, workers=2) as w:
        summary = await w.summary(await w.start_run(make_experiment(tmp_path, workers=2, ps=2)))
        check(summary, workers=2)
        assert summary["roles"]["ps"] == 2


async def test_threads_share_weights_and_images_go_through_convolutions(tmp_path: Path) -> None:
    async with world(tmp_path, workers=0) as w:
        await w.start_worker("threads", threads=3)
        experiment = make_experiment(tmp_path, train={"passes": 3})
        data = np.load(experiment.data.source)
        images = {key: array.reshape(-1, 3, 4, 1) if key[0] == "x" else array for key, array in data.items()}
        np.savez(tmp_path / "images.npz", **images)
        experiment = msgspec.structs.replace(
            experiment,
            model=Model((3, 4, 1), (Conv2D(6, 2, padding="same", activation="relu"), Dense(16, "relu"), Softmax(4))),
            data=DataConfig(format="npz", source=str(tmp_path / "images.npz"), scale="none"),
        )
        check(await w.summary(await w.start_run(experiment)), passes=3)


async def test_shares_of_a_batch_at_shares_of_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that take half a batch each push as much as before, at half the rate."""
    monkeypatch.setattr(server, "shares_of", lambda experiment, parameters, threads: 2)
    pushed: list[tuple[int, int, float]] = []
    push = Downpour.push

    def note(self: Downpour, slot: Slot, *others: Any) -> Any:
        pushed.append((slot.steps, slot.examples, slot.learning_rate))
        return push(self, slot, *others)

    monkeypatch.setattr(Downpour, "push", note)
    async with world(tmp_path, workers=0) as w:
        await w.start_worker("threads", threads=2)
        summary = await w.summary(await w.start_run(make_experiment(tmp_path)))
    check(summary)
    assert sum(examples for _, examples, _ in pushed) == 2 * EXAMPLES
    assert max(pushed) == (2, 8, 0.05)
    assert {rate for _, _, rate in pushed} == {0.05}


async def test_the_same_workers_serve_one_run_after_another(tmp_path: Path) -> None:
    async with world(tmp_path, workers=2) as w:
        for run in ("001", "002"):
            check(await w.summary(await w.start_run(make_experiment(tmp_path, workers=2), run)), workers=2)
        for number in range(2):
            status = w.cluster.contexts[f"worker-{number}"].status()
            assert not w.cluster.tasks[f"worker-{number}"].done(), status


async def test_a_worker_with_once_leaves_after_one_run(tmp_path: Path) -> None:
    async with world(tmp_path, workers=0) as w:
        await w.start_worker("once", once=True)
        check(await w.summary(await w.start_run(make_experiment(tmp_path))))
        async with asyncio.timeout(ENOUGH_S):
            await w.cluster.tasks["once"]


async def test_a_worker_told_its_job_takes_no_other(tmp_path: Path) -> None:
    async with world(tmp_path, workers=0) as w:
        picky = await w.start_worker("picky", job="another")
        await w.start_worker("willing")
        check(await w.summary(await w.start_run(make_experiment(tmp_path))))
        assert picky.status() == {"state": "waiting for a run", "threads": 1}


async def test_what_a_worker_that_leaves_had_is_done_by_the_other(tmp_path: Path) -> None:
    """Both are at work when one is asked to stop; it says goodbye, and every example is still done."""
    async with world(tmp_path, workers=2) as w:
        passes = 12
        node = await w.start_run(make_experiment(tmp_path, train={"passes": passes}, workers=2))
        await until(await w.watch(node), EXAMPLES)
        assert all(w.cluster.contexts[f"worker-{number}"].status()["batches"] for number in range(2))
        await w.cluster.stop("worker-0")
        summary = await w.summary(node)
        assert summary["examples"] == passes * EXAMPLES
        assert summary["test_top1"] > 2 * CHANCE


async def test_a_worker_that_is_killed_is_replaced_by_one_that_comes(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        passes = 8
        node = await w.start_run(make_experiment(tmp_path, train={"passes": passes}))
        await until(await w.watch(node), EXAMPLES)
        await w.cluster.kill("worker-0")
        await w.start_worker("late")
        summary = await w.summary(node)
        assert summary["examples"] == passes * EXAMPLES
        assert summary["test_top1"] > 2 * CHANCE


async def test_a_worker_says_what_it_does(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        worker = w.cluster.contexts["worker-0"]
        assert worker.status() == {"state": "waiting for a run", "threads": 1}
        node = await w.start_run(make_experiment(tmp_path, train={"passes": 4}))
        await until(await w.watch(node), EXAMPLES)
        status = worker.status()
        assert status["state"] in ("training", "evaluating", "waiting") and status["job"] == "heaps"
        assert worker.status.__self__.session.trained_s > 0  # type: ignore[attr-defined]
        assert status["pushes"] > 0 and status["fetches"] > 0 and 0 <= status["waiting_share"] <= 1
        await w.summary(node)


@pytest.mark.parametrize(
    ("trained_s", "failure", "joins"),
    [
        (0.0, UnreachableError("lost"), 1 + server.REJOINS_MAX),
        (400.0, UnreachableError("lost"), None),
        (400.0, DivergedError("not finite"), 1 + server.REJOINS_MAX),
    ],
)
async def test_losses_are_forgotten_after_minutes_of_training(
    monkeypatch: pytest.MonkeyPatch, trained_s: float, failure: AdamctlError, joins: int | None
) -> None:
    """A server lost now and then ends no worker; one that is lost again and again does, and so does divergence."""
    joined = 0

    async def find(process: server.WorkerProcess) -> tuple[str, AsyncMock, None]:
        return "run", AsyncMock(), None

    async def train(process: server.WorkerProcess, *arguments: object) -> str:
        nonlocal joined
        joined += 1
        process.session = SimpleNamespace(trained_s=trained_s)  # type: ignore[assignment]
        if joined == 20:
            process.context.stop("enough")
            return "stopped"
        raise failure

    monkeypatch.setattr(server, "_find_run", find)
    monkeypatch.setattr(server, "_train", train)
    monkeypatch.setattr(server, "_ends_soon", AsyncMock(return_value=False))
    async with memory_cluster(seed=1) as cluster:
        process = server.WorkerProcess(await cluster.context("worker", "w"), 1)
        stop = asyncio.create_task(process.context.stopping.wait())
        compiled = asyncio.get_running_loop().create_future()
        compiled.set_result(None)
        with nullcontext() if joins is None else pytest.raises(type(failure)):
            await server._serve_runs(process, stop, compiled)
        stop.cancel()
    assert joined == (20 if joins is None else joins)


async def test_a_worker_needs_a_thread(tmp_path: Path) -> None:
    async with memory_cluster(seed=1) as cluster:
        context = await cluster.context("worker", "none", {"threads": 0})
        with pytest.raises(ConfigurationError, match="--threads: expected at least 1; found 0"):
            await server.run(context)

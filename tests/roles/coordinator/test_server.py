"""The coordinator's process on an in-memory cluster: real controller and servers, played workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.experiment import ClusterConfig, DataConfig, Experiment, TrainConfig
from adamctl.config.records import JobRecord, job_key
from adamctl.errors import AdamctlError, ConfigurationError, RemoteError, RunFailedError, UnreachableError
from adamctl.model.description import Dense, Model, Softmax
from adamctl.roles.controller.client import read_record
from adamctl.roles.coordinator import manifest, server
from adamctl.roles.coordinator.client import CoordinatorClient, Joined
from adamctl.roles.coordinator.progress import RunProgress
from adamctl.roles.data import server as data_server
from adamctl.roles.ps import server as ps_server
from adamctl.roles.ps.client import ParameterClient, read_checkpoint
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import EvaluateTask, NextTaskRequest, TaskReport
from tests.cluster import ClusterInMemory, memory_cluster

EXAMPLES, TEST_EXAMPLES, CLASSES = 96, 40, 4


def make_experiment(folder: Path, *, train: dict[str, Any] | None = None, **cluster: int) -> Experiment:
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
        client = await self.client(node)
        worker = PlayedWorker(client, name or f"worker-{self.count}", 1000 + self.count, **options)
        await until(client, lambda progress: progress.state != "starting")
        await worker.join()
        return worker

    async def ended(self, node: str = "coordinator") -> None:
        """Waits for a coordinator's process to end and raises what it ended with."""
        async with asyncio.timeout(20):
            await self.cluster.tasks[node]

    async def close(self) -> None:
        for client in self.clients:
            await client.close()


def heard(progress: RunProgress, words: str) -> int:
    return sum(words in message for message in progress.messages)


async def until(client: CoordinatorClient, reached: Callable[[RunProgress], object]) -> RunProgress:
    async with asyncio.timeout(20):
        while True:
            progress = await client.status()
            if reached(progress):
                return progress
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


async def test_a_whole_run(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(parameter=2)
        folder = await w.start_run(make_experiment(tmp_path, ps=2))
        worker = await w.worker()
        assert worker.joined.reply.job == "small"
        assert worker.joined.reply.classes == CLASSES
        assert worker.joined.data_servers == ("data-0",)
        assert worker.joined.experiment.model.input == (8,)
        assert await worker.work() == "ended"
        progress = await until(await w.client(), lambda p: p.final)
        await w.ended()
        assert progress.state == "ended"
        assert progress.examples == progress.examples_total == 2 * EXAMPLES
        assert [entry.passes for entry in progress.evaluations] == [1.0, 2.0]
        assert progress.top1 == 0.5
        assert progress.loss == pytest.approx(0.5)
        assert progress.staleness_p50 == 0 and progress.staleness_p99 == 1
        covered = sorted(worker.ranges)
        assert covered == [(number, at, at + 8) for number in range(2) for at in range(0, EXAMPLES, 8)]

        summary = json.loads((folder / "summary.json").read_text())
        assert summary["schema_version"] == 1 and summary["run"] == "small"
        assert summary["roles"] == {"controller": 1, "coordinator": 1, "ps": 2, "data": 1, "worker": 1}
        assert summary["test_top1"] == summary["best_test_top1"] == 0.5
        kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert kinds.count("evaluation") == 2
        found = await read_record(w.cluster.client, job_key("small"), JobRecord)
        assert found is not None and found[0].state == "ended"


async def test_checkpoints_can_be_read_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(parameter=2)
        train = {"passes": 4, "checkpoint_keep": 2}
        folder = await w.start_run(make_experiment(tmp_path, train=train, ps=2))
        await (await w.worker()).work()
        await w.ended()
        checkpoints = manifest.finished(folder / "checkpoints")
        assert len(checkpoints) == 2
        assert list((folder / "checkpoints").rglob("*.partial")) == []
        for path in checkpoints:
            manifest.verify(path)
        checkpoint = read_checkpoint(checkpoints[-1], verify=True)
        assert {tensor.name for tensor in checkpoint.tensors} == {
            "dense1.weight",
            "dense1.bias",
            "softmax1.weight",
            "softmax1.bias",
        }
        described = manifest.read_manifest(checkpoints[-1])
        assert described.complete
        assert described.state.examples == 4 * EXAMPLES


async def test_stop_and_resume_go_on_from_the_range_where_it_was(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        experiment = make_experiment(tmp_path)
        first = await w.start_run(experiment)
        worker = await w.worker()
        reply = await worker.ask()
        reports = tuple(worker._report(task) for task in reply.train)
        await worker.ask(reports, wanted=0, wait_s=0.0)
        await (await w.client()).stop("enough for now")
        assert await worker.work() == "stopped: enough for now"
        await w.ended()
        (saved,) = manifest.finished(first / "checkpoints")
        assert not manifest.read_manifest(saved).complete

        await w.start_run(experiment, "002", "coordinator-2", resume="auto")
        second = await w.worker("coordinator-2")
        assert second.joined.reply.job == "small-2", "a name is used once"
        await second.work()
        await w.ended("coordinator-2")
        assert sorted(worker.ranges + second.ranges) == [
            (number, at, at + 8) for number in range(2) for at in range(0, EXAMPLES, 8)
        ]
        # A complete run is not taken up again.
        await w.start_run(experiment, "003", "coordinator-3", resume="auto")
        third = await w.worker("coordinator-3")
        await third.work()
        await w.ended("coordinator-3")
        assert len(third.ranges) == len(worker.ranges + second.ranges)


async def test_a_resumed_run_has_the_parameters_of_the_checkpoint(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        first = await w.start_run(make_experiment(tmp_path))
        await (await w.worker()).work()
        await w.ended()
        latest = manifest.find_latest(first)
        assert latest is not None
        longer = make_experiment(tmp_path, train={"passes": 3})
        await w.start_run(longer, "002", "coordinator-2", resume=str(latest))
        worker = await w.worker("coordinator-2")
        parameters = ParameterClient.from_context(await w.cluster.context("worker", "reader"), "small-2")
        await parameters.attach(deadline_s=10)
        pulled = np.zeros(parameters.layout.flat_size, np.float32)
        await parameters.pull(pulled)
        for index, tensor in enumerate(parameters.layout.tensors):
            values, _ = read_checkpoint(latest).rows(index, 0, tensor.shape[0])
            np.testing.assert_array_equal(pulled[tensor.offset : tensor.offset + tensor.size], values[0])
        await parameters.close()
        await worker.work()
        await w.ended("coordinator-2")
        assert {number for number, _, _ in worker.ranges} == {2}


async def test_a_run_warm_starts_from_the_parameters_of_another(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        first = await w.start_run(make_experiment(tmp_path))
        await (await w.worker()).work()
        await w.ended()
        latest = manifest.find_latest(first)
        assert latest is not None
        warm = make_experiment(tmp_path, train={"passes": 1, "warmstart_from": str(first)})
        await w.start_run(msgspec.structs.replace(warm, seed=8), "002", "coordinator-2")
        worker = await w.worker("coordinator-2")
        parameters = ParameterClient.from_context(await w.cluster.context("worker", "reader"), "small-2")
        await parameters.attach(deadline_s=10)
        pulled = np.zeros(parameters.layout.flat_size, np.float32)
        await parameters.pull(pulled)
        for index, tensor in enumerate(parameters.layout.tensors):
            values, _ = read_checkpoint(latest).rows(index, 0, tensor.shape[0])
            np.testing.assert_array_equal(pulled[tensor.offset : tensor.offset + tensor.size], values[0])
        await parameters.close()
        await worker.work()
        await w.ended("coordinator-2")
        assert {number for number, _, _ in worker.ranges} == {0}, "all passes are its own"


async def test_a_warm_start_from_nowhere_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path, train={"warmstart_from": str(tmp_path / "nowhere")}))
        with pytest.raises(ConfigurationError, match=r"train\.warmstart_from .*expected a checkpoint"):
            await w.ended()


async def test_what_cannot_be_resumed_is_refused_with_what_differs(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        folder = await w.start_run(make_experiment(tmp_path))
        await (await w.worker()).work()
        await w.ended()
        other = msgspec.structs.replace(make_experiment(tmp_path), seed=8)
        await w.start_run(other, "002", "coordinator-2", resume=str(folder))
        with pytest.raises(ConfigurationError, match="made with seed 7"):
            await w.ended("coordinator-2")


async def test_a_lost_server_fails_the_run_with_its_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("ps-0")
        assert "parameter server ps-0" in await worker.work()
        with pytest.raises(RunFailedError, match=r"parameter server ps-0 .* is gone"):
            await w.ended()


@pytest.mark.parametrize("servers", [1, 2])
async def test_data_servers_may_die_and_come_back(tmp_path: Path, servers: int) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(data=servers)
        await w.start_run(make_experiment(tmp_path, workers=1), job="small")
        worker = await w.worker()
        client = await w.client()
        for life in (1, 2):  # the second time, it is the one that came back which dies
            for number in range(servers):
                await w.cluster.kill(f"data-{number}")
            for number in range(servers):
                await w.cluster.start("data", f"data-{number}", data_server.run, {"threads": 1})
            await until(client, lambda progress, life=life: heard(progress, "is back") >= life)
        await worker.work()
        await w.ended()


async def test_a_run_without_any_data_server_fails_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DATA_AGAIN_S", 0.1)
    async with world(tmp_path) as w:
        await w.start_servers(data=2)
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("data-0")
        await w.cluster.kill("data-1")
        assert "data server data-" in await worker.work()
        with pytest.raises(RunFailedError, match=r"data server data-[01] is gone, and it was the last one"):
            await w.ended()


async def test_a_killed_worker_does_not_end_the_run(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path, workers=2))
        killed, other = await w.worker(), await w.worker()
        await killed.ask()
        await killed.client.close()
        await other.work()
        await w.ended()
        summary = json.loads((tmp_path / "001" / "summary.json").read_text())
        assert summary["examples"] == 2 * EXAMPLES


async def test_two_jobs_at_once_and_no_more_workers_than_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(parameter=2)
        await w.start_run(make_experiment(tmp_path), "001", "coordinator-a")
        await w.start_run(make_experiment(tmp_path), "002", "coordinator-b")
        first, second = await w.worker("coordinator-a"), await w.worker("coordinator-b")
        assert {first.joined.reply.job, second.joined.reply.job} == {"small", "small-2"}
        with pytest.raises(RemoteError, match="has its workers") as refused:
            await PlayedWorker(await w.client("coordinator-a"), "third", 5).join()
        assert refused.value.code == ErrorCode.OVER_QUOTA
        await asyncio.gather(first.work(), second.work())
        await w.ended("coordinator-a")
        await w.ended("coordinator-b")


async def test_a_name_that_was_asked_for_and_is_running_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path), job="mine")
        worker = await w.worker()
        with pytest.raises(ConfigurationError, match="job 'mine' is running already"):
            await w.start_run(make_experiment(tmp_path), "002", "coordinator-2", job="mine")
        w.cluster.tasks.pop("coordinator-2")
        await worker.work()
        await w.ended()


@pytest.mark.parametrize("missing", ["ps", "data", "worker"])
async def test_says_whom_it_waits_for_and_gives_up_with_exit_code_3(tmp_path: Path, missing: str) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(parameter=missing != "ps", data=missing != "data")
        await w.start_run(make_experiment(tmp_path), wait=1.0)
        name = {"ps": "1 parameter server", "data": "1 data server", "worker": "a worker"}[missing]
        await until(await w.client(), lambda p: any(name in text for text in p.messages))
        with pytest.raises(UnreachableError) as ended:
            await w.ended()
        assert ended.value.exit_code == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda e: msgspec.structs.replace(e, data=DataConfig(format="npz", source="/nowhere.npz")), "nowhere"),
        (lambda e: msgspec.structs.replace(e, model=Model((8,), (Softmax(2),))), "4 classes"),
        (
            lambda e: msgspec.structs.replace(
                e, train=msgspec.structs.replace(e.train, evaluate_on="validation", target=0.5)
            ),
            "validation split is empty",
        ),
    ],
)
async def test_what_does_not_fit_is_a_configuration_error(
    tmp_path: Path, change: Callable[[Experiment], Experiment], expected: str
) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(change(make_experiment(tmp_path)))
        with pytest.raises(AdamctlError, match=expected) as ended:
            await w.ended()
        assert ended.value.exit_code == 2


async def test_a_status_request_waits_for_the_state_to_change(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        state = (await worker.client.status()).state
        waiting = asyncio.ensure_future((await w.client()).status(state, wait_s=20.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        work = asyncio.ensure_future(worker.work())
        assert (await waiting).state != state
        await work
        await w.ended()


async def test_a_told_coordinator_writes_a_checkpoint_and_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        folder = await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        reply = await worker.ask()
        await worker.ask(tuple(worker._report(task) for task in reply.train), wanted=0, wait_s=0.0)
        working: Awaitable[str] = asyncio.ensure_future(worker.work())
        w.cluster.contexts["coordinator"].stop("the test is over")
        assert (await working).startswith("stopped")
        await w.ended()
        assert manifest.find_latest(folder) is not None

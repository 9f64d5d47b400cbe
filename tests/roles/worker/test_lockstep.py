"""Replicas in step do, bit for bit, what one process does with the same batches in the same order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.experiment import Experiment, OptimizerConfig, ScheduleConfig
from adamctl.config.schedule import learning_rate
from adamctl.kernels.backend import choose
from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.rules.make import make_rule
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Dropout, Model, Softmax
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.roles.coordinator.checkpoint.manifest import find_latest
from adamctl.roles.coordinator.core.rounds import Rounds
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.ps.client.parameter_client import load_parameters
from adamctl.roles.worker.core.batches import cut
from adamctl.roles.worker.lockstep import place_of
from adamctl.wire.messages import TrainTask
from tests.roles.worker.test_server import EXAMPLES, FEATURES, World, check, make_experiment, until, world

FASTEST = choose(None)
RULES = {
    "sgd": OptimizerConfig(lr=0.05, weight_decay=0.01, schedule=ScheduleConfig(type="cosine")),
    "adagrad": OptimizerConfig(type="adagrad", lr=0.02),
}


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_KERNELS", "numpy")


class Planned(list[TrainTask]):
    """All tasks as a coordinator plans them; those of a worker that died come twice."""

    rounds: Rounds

    async def until_busy(self, worker: str) -> None:
        """Waits until a worker has ranges and has not reported them."""
        async with asyncio.timeout(20):
            while worker not in (key[0] for key in self.rounds._work._out):  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    tasks = Planned()
    assign = Rounds._assign

    def note(self: Rounds, worker: Any, task: TrainTask, *others: Any) -> None:
        tasks.append(task)
        tasks.rounds = self
        assign(self, worker, task, *others)

    monkeypatch.setattr(Rounds, "_assign", note)
    return tasks


def in_step(folder: Path, rule: str, model: Model | None = None, **cluster: int) -> Experiment:
    """240 examples in batches of 7: the last one of a pass has 2."""
    train = {"consistency": "sync", "batch": 7, "range_batches": 4, "passes": 2}
    experiment = make_experiment(folder, train=train, **cluster)
    return msgspec.structs.replace(experiment, optimizer=RULES[rule], model=model or experiment.model)


class OneProcess:
    """A network and a rule, without servers or workers, given parts of steps in their order."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.layout = build_layout(experiment.model, experiment.cluster.ps)
        self.network = Network(experiment.model, experiment.train.batch)
        self.context = self.network.context()
        self.rule = make_rule(experiment.optimizer.rule)
        self.weights = np.zeros(self.layout.flat_size, np.float32)
        for index, tensor in enumerate(self.layout.tensors):
            rows = initial_rows(tensor, index, 0, tensor.shape[0], experiment.seed)
            self.weights[tensor.offset : tensor.offset + tensor.size] = rows.reshape(-1)
        self.state = [self.rule.initial_state(shard.size) for shard in self.layout.shards]

    async def run(self, planned: list[TrainTask], data: DataClient, dataset: Any) -> None:
        parts: dict[tuple[int, int], tuple[TrainTask, int]] = {}
        for task in planned:
            for number in range(task.batches[task.part]):
                parts[task.step + number, task.part] = (task, number)
        sums: dict[int, tuple[np.ndarray, float]] = {}
        last = max(step for step, _ in parts)
        for step in range(1, last + 1):
            of_step = sorted(part for found, part in parts if found == step)
            assert of_step == list(range(len(of_step))), "every part of every step is there"
            for part in of_step:
                task, number = parts[step, part]
                assert place_of(task, number) == (step, part, len(of_step))
                gradient, rate = await self.gradient(task, number, data, dataset)
                before = sums.get(step)
                sums[step] = (gradient, rate) if before is None else (before[0] + gradient, before[1])
            self.apply(*sums.pop(step))

    async def gradient(self, task: TrainTask, number: int, data: DataClient, dataset: Any) -> tuple[np.ndarray, float]:
        train, optimizer = self.experiment.train, self.experiment.optimizer
        piece = cut(task, train.batch)[number]
        read = await data.read(dataset, "train", task.pass_number, task.start + piece.start, task.start + piece.stop)
        images, labels = read.images.copy(), read.labels.copy()
        read.release()
        key = step_key(self.experiment.seed, task.pass_number, task.start + piece.start)
        self.network.step(self.context, self.network.views(self.weights), images, labels, False, key)
        return self.context.gradient.copy(), learning_rate(optimizer.lr, optimizer.schedule, piece.progress)

    def apply(self, gradient: np.ndarray, rate: float) -> None:
        for shard, state in zip(self.layout.shards, self.state, strict=True):
            part = slice(shard.offset, shard.offset + shard.size)
            self.rule.apply(self.weights[part], self.weights[part], state, gradient[part], rate)

    def check(self, folder: Path) -> None:
        """Compares with the last checkpoint of a run."""
        checkpoint = find_latest(folder)
        assert checkpoint is not None
        found = load_parameters(checkpoint)
        for tensor in self.layout.tensors:
            ours = self.weights[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape)
            assert found[tensor.name].tobytes() == ours.tobytes(), tensor.name


async def compare(w: World, experiment: Experiment, planned: list[TrainTask], run: str = "001") -> OneProcess:
    context = await w.cluster.context("worker", f"reader-{run}")
    data = DataClient.from_context(context, ("data-0",))
    try:
        dataset = await data.open(experiment.data, experiment.model.input, experiment.seed)
        reference = OneProcess(experiment)
        await reference.run(planned, data, dataset)
        reference.check(w.folder / run)
        return reference
    finally:
        await data.close()


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
async def test_any_number_of_replicas_and_servers_equals_one_process(
    tmp_path: Path, planned: Planned, rule: str, replicas: int, servers: int
) -> None:
    async with world(tmp_path, servers=servers, workers=replicas) as w:
        experiment = in_step(tmp_path, rule, workers=replicas, ps=servers)
        summary = await w.summary(await w.start_run(experiment))
        check(summary, workers=replicas)
        assert summary["staleness_p99"] == summary["gradient_age_p99"] == 0
        assert summary["consistency"] == "sync"
        batches = -(-EXAMPLES // 7)
        assert max(task.step + task.batches[0] - 1 for task in planned) == 2 * -(-batches // replicas)
        await compare(w, experiment, planned)


@pytest.mark.skipif(FASTEST == "numpy", reason="nothing else is installed")
async def test_with_the_fastest_kernels_and_dropout(
    tmp_path: Path, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAMCTL_KERNELS", FASTEST)
    model = Model((FEATURES,), (Dense(8, "relu"), Dropout(0.3), Softmax(4)))
    async with world(tmp_path, servers=2, workers=2) as w:
        experiment = in_step(tmp_path, "adagrad", model, workers=2, ps=2)
        check(await w.summary(await w.start_run(experiment)), workers=2)
        await compare(w, experiment, planned)


async def test_a_run_that_is_repeated_ends_with_the_same_bits(tmp_path: Path) -> None:
    found = []
    async with world(tmp_path, workers=2) as w:
        for run in ("001", "002"):
            await w.summary(await w.start_run(in_step(tmp_path, "sgd", workers=2), run))
            checkpoint = find_latest(tmp_path / run)
            assert checkpoint is not None
            found.append(load_parameters(checkpoint))
    assert all(found[0][name].tobytes() == found[1][name].tobytes() for name in found[0])


@pytest.mark.parametrize("survivors", [1, 2])
async def test_a_killed_replica_is_missed_by_nobody(tmp_path: Path, planned: Planned, survivors: int) -> None:
    """Its parts are made by the others, from the weights that it would have made them from."""
    async with world(tmp_path, servers=2, workers=survivors + 1) as w:
        experiment = in_step(tmp_path, "adagrad", workers=survivors + 1, ps=2)
        train = msgspec.structs.replace(experiment.train, passes=6)
        experiment = msgspec.structs.replace(experiment, train=train)
        node = await w.start_run(experiment)
        await until(await w.watch(node), EXAMPLES)
        await planned.until_busy("worker-0")
        await w.cluster.kill("worker-0")
        summary = await w.summary(node)
        assert summary["examples"] == 6 * EXAMPLES
        assert len({(task.step, task.part) for task in planned}) < len(planned), "some was handed out again"
        await compare(w, experiment, planned)


async def test_a_replica_that_leaves_and_one_that_comes(tmp_path: Path, planned: Planned) -> None:
    async with world(tmp_path, workers=2) as w:
        experiment = in_step(tmp_path, "sgd", workers=2)
        train = msgspec.structs.replace(experiment.train, passes=8)
        experiment = msgspec.structs.replace(experiment, train=train)
        node = await w.start_run(experiment)
        client = await w.watch(node)
        await until(client, EXAMPLES)
        await w.cluster.stop("worker-1")
        await until(client, 3 * EXAMPLES)
        await w.start_worker("late")
        summary = await w.summary(node)
        assert summary["examples"] == 8 * EXAMPLES
        assert len(planned[-1].batches) == 2, "the late one takes part"
        await compare(w, experiment, planned)

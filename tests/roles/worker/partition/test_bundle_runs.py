"""Two partitions and a batch algorithm, every role real: the same bits whoever does what, and whoever dies."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.config.experiment import OptimizerConfig
from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.roles.coordinator.checkpoint.manifest import find_latest
from adamctl.roles.ps.client.parameter_client import load_parameters
from adamctl.roles.worker.partition.bundle_engine import BundleEngine
from adamctl.roles.worker.partition.threads import FlightThreads
from tests.roles.worker.test_server import (
    CHANCE,
    ENOUGH_S,
    EXAMPLES,
    World,
    make_experiment,
    plain_kernels,
    until,
    world,
)

__all__ = ["plain_kernels"]
BATCH = 7
"""The last portion of a pass has two examples."""
ROWS = Model((6, 6, 1), (Conv2D(3, 3, activation="relu"), Dense(8, "relu"), Softmax(4)))
"""The partitions of its convolution share its parameters."""


def wanted(folder: Path, passes: int = 2, **cluster: Any) -> Any:
    experiment = make_experiment(folder, train={"passes": passes, "batch": BATCH}, partitions=2, **cluster)
    return msgspec.structs.replace(experiment, optimizer=OptimizerConfig(type="lbfgs", history=3))


def with_rows(folder: Path, experiment: Any) -> Any:
    """The same with images, and a convolution."""
    path = folder / "images.npz"
    if not path.exists():
        random = np.random.default_rng(4)
        labels = np.arange(EXAMPLES) % 4
        images = random.standard_normal((4, *ROWS.input))[labels] + 0.5 * random.standard_normal(
            (EXAMPLES, *ROWS.input)
        )
        np.savez(path, x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    data = DataConfig(format="npz", source=str(path), scale="none")
    return msgspec.structs.replace(experiment, model=ROWS, data=data, partition={"conv2d1": "rows"})


def digest(folder: Path, run: str = "001") -> str:
    checkpoint = find_latest(folder / run)
    assert checkpoint is not None
    found = hashlib.sha256()
    for _, values in sorted(load_parameters(checkpoint).items()):
        found.update(values.tobytes())
    return found.hexdigest()


async def trained(folder: Path, experiment: Any, threads: int = 1) -> str:
    """Returns what the parameters of a run are at the end."""
    os.makedirs(folder, exist_ok=True)
    cluster = experiment.cluster
    async with world(folder, cluster.ps, 0) as w:
        for number in range(cluster.workers):
            await w.start_worker(f"worker-{number}", threads=threads)
        summary = await w.summary(await w.start_run(experiment))
    check(summary, experiment)
    return digest(folder)


def check(summary: dict[str, Any], experiment: Any) -> None:
    """The whole batch was evaluated as often as wanted, and each bundle counted once."""
    passes, batch = experiment.train.passes, summary["batch"]
    assert (batch["evaluations"], batch["restarts"]) == (passes, 0)
    assert summary["examples"] == passes * EXAMPLES
    assert batch["bundles"] == batch["bundles_total"] > 6


async def test_the_bits_depend_neither_on_threads_nor_on_flights(tmp_path: Path) -> None:
    one = await trained(tmp_path / "1", wanted(tmp_path, workers=2, flights=1))
    assert await trained(tmp_path / "2", wanted(tmp_path, workers=2, flights=3), threads=2) == one


@pytest.mark.slow
async def test_the_bits_depend_neither_on_servers_nor_on_groups_nor_on_shared_parameters(tmp_path: Path) -> None:
    found = set()
    for number, (cluster, threads) in enumerate(
        [
            ({"workers": 2, "flights": 1, "ps": 1}, 1),
            ({"workers": 2, "flights": 4, "ps": 2}, 2),
            ({"workers": 4, "ps": 2}, 1),
        ]
    ):
        experiment = with_rows(tmp_path, wanted(tmp_path, 5, **cluster))
        found.add(await trained(tmp_path / str(number), experiment, threads))
    assert len(found) == 1


@pytest.mark.slow
async def test_it_learns_and_finds_about_what_one_process_finds(tmp_path: Path) -> None:
    losses = []
    for partitions in (1, 2):
        async with world(tmp_path, workers=2) as w:
            experiment = wanted(tmp_path, 10, workers=2)
            cluster = msgspec.structs.replace(experiment.cluster, partitions=partitions)
            summary = await w.summary(
                await w.start_run(msgspec.structs.replace(experiment, cluster=cluster), f"00{partitions}")
            )
        assert summary["test_top1"] > 2 * CHANCE
        losses.append(summary["batch"]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_member_costs_no_bit(tmp_path: Path, others: int, victim: int) -> None:
    """Half of what its group had may be pushed; another group, or the next one, pushes all of it again."""
    right = await trained(tmp_path / "right", wanted(tmp_path, 8, workers=2))
    workers = 2 + others
    async with world(tmp_path, workers=workers) as w:
        experiment = wanted(tmp_path, 8, workers=workers)
        node = await w.start_run(experiment)
        await killed(w, node, f"worker-{victim}")
        await w.start_worker("late")
        summary = await w.summary(node)
        check(summary, experiment)
    assert digest(tmp_path) == right


@pytest.mark.slow
async def test_a_slow_group_is_helped_and_what_it_has_left_of_such_bundles_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = await trained(tmp_path / "right", wanted(tmp_path, 4, workers=2))
    finish = FlightThreads._finish

    def slow(self: Any, one: Any) -> None:
        if self._slots._parts.group.epoch == 1 and one.flight.number > 40:
            time.sleep(0.03)
        finish(self, one)

    monkeypatch.setattr(FlightThreads, "_finish", slow)
    async with world(tmp_path, workers=4) as w:
        experiment = wanted(tmp_path, 4, workers=4)
        summary = await w.summary(await w.start_run(experiment))
    check(summary, experiment)
    assert summary["batch"]["backups_won"] > 0
    assert digest(tmp_path) == right


@pytest.mark.slow
async def test_a_primary_that_dies_costs_no_bit(tmp_path: Path) -> None:
    """Scratch vectors and sums are lost; both members hear of it, and the lead has the evaluation made again."""
    right = await trained(tmp_path / "right", wanted(tmp_path, 8, workers=2))
    async with world(tmp_path, servers=3, workers=2) as w:
        experiment = wanted(tmp_path, 8, workers=2, ps=3, replication=3)
        node = await w.start_run(experiment)
        await killed(w, node, "ps-0")
        check(await w.summary(node), experiment)
    assert digest(tmp_path) == right


@pytest.mark.slow
async def test_shards_that_have_half_of_a_bundle_ignore_it_when_another_group_pushes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = await trained(tmp_path / "right", wanted(tmp_path, 3, workers=2))
    push, pushed, half = BundleEngine.push, list[tuple[int, int, int]](), asyncio.Event()

    async def halves(self: BundleEngine, bundle: int, evaluation: int, number: int, weight: float) -> dict[int, int]:
        group = self._parts.group
        if (group.own, evaluation) == (1, 2) and group.epoch == 1 and number > 3:
            await asyncio.Event().wait()  # it dies before it pushes
        refused = await push(self, bundle, evaluation, number, weight)
        pushed.append((group.own, evaluation, number))
        if (0, 2, 4) in pushed:
            half.set()
        return refused

    monkeypatch.setattr(BundleEngine, "push", halves)
    async with world(tmp_path, workers=2) as w:
        experiment = wanted(tmp_path, 3, workers=2)
        node = await w.start_run(experiment)
        await asyncio.wait_for(half.wait(), ENOUGH_S)
        await w.cluster.kill("worker-1")
        await w.start_worker("late")
        check(await w.summary(node), experiment)
    assert pushed.count((0, 2, 4)) == 2 and pushed.count((1, 2, 4)) == 1
    assert digest(tmp_path) == right


async def killed(w: World, node: str, victim: str) -> None:
    """Kills a process in the middle of an evaluation."""
    client = await w.watch(node)
    await until(client, EXAMPLES)
    while True:
        batch = (await client.status()).batch
        assert batch is not None
        if 1 < batch.bundles < batch.bundles_total - 1:
            break
        await asyncio.sleep(0.001)
    await w.cluster.kill(victim)

"""Replicas of partitions in step: runs repeat bit for bit, do what one process does, and lose nothing with a member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.model.description import Dense, Dropout, Model, Softmax
from adamctl.roles.coordinator.checkpoint.manifest import find_latest
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.ps.client.parameter_client import load_parameters
from tests.roles.worker.test_lockstep import OneProcess, Planned, in_step, planned
from tests.roles.worker.test_server import EXAMPLES, FEATURES, World, check, plain_kernels, until, world

__all__ = ["plain_kernels", "planned"]
MODEL = Model((FEATURES,), (Dense(8, "relu"), Dropout(0.25), Softmax(4)))
BATCH = 8


def wanted(folder: Path, passes: int = 1, clip_norm: float | None = None, **cluster: int) -> Any:
    """Batches in flights of 4 examples."""
    experiment = in_step(folder, "adagrad", MODEL, **cluster)
    return msgspec.structs.replace(
        experiment,
        train=msgspec.structs.replace(experiment.train, batch=BATCH, passes=passes),
        optimizer=msgspec.structs.replace(experiment.optimizer, clip_norm=clip_norm),
    )


def parameters(folder: Path, run: str = "001") -> dict[str, np.ndarray]:
    checkpoint = find_latest(folder / run)
    assert checkpoint is not None
    return load_parameters(checkpoint)


def check_close(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    for name, values in found.items():
        np.testing.assert_allclose(values, right[name], atol=3e-4 * float(np.abs(right[name]).max()), err_msg=name)


async def in_one_process(w: World, experiment: Any, planned: Planned) -> dict[str, np.ndarray]:
    """Returns the parameters of a process that makes the same parts of the same steps."""
    data = DataClient.from_context(await w.cluster.context("worker", "reader"), ("data-0",))
    try:
        reference = OneProcess(experiment)
        await reference.run(planned, data, await data.open(experiment.data, experiment.model.input, experiment.seed))
        return {
            tensor.name: reference.weights[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape)
            for tensor in reference.layout.tensors
        }
    finally:
        await data.close()


async def test_runs_repeat_bit_for_bit(tmp_path: Path) -> None:
    """The last batch of a pass is smaller, and gradients are clipped."""
    async with world(tmp_path, servers=2, workers=2) as w:
        experiment = wanted(tmp_path, clip_norm=0.5, workers=2, partitions=2, ps=2)
        train = msgspec.structs.replace(experiment.train, batch=14)
        experiment = msgspec.structs.replace(experiment, train=train)
        for run in ("001", "002"):
            check(await w.summary(await w.start_run(experiment, run)), passes=1, workers=2)
    first, second = parameters(tmp_path, "001"), parameters(tmp_path, "002")
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


async def test_two_replicas_of_two_partitions_do_what_one_process_does(tmp_path: Path, planned: Planned) -> None:
    async with world(tmp_path, servers=2, workers=4) as w:
        experiment = wanted(tmp_path, workers=4, partitions=2, ps=2)
        summary = await w.summary(await w.start_run(experiment))
        check(summary, passes=1, workers=4)
        assert summary["staleness_p99"] == summary["gradient_age_p99"] == 0
        assert max(task.step + task.batches[0] - 1 for task in planned) == EXAMPLES // BATCH // 2
        check_close(parameters(tmp_path), await in_one_process(w, experiment, planned))


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_member_costs_no_example(tmp_path: Path, planned: Planned, others: int, victim: int) -> None:
    """Another replica computes what its group had; without one, the next group goes on where it was."""
    workers = 2 + others
    async with world(tmp_path, workers=workers) as w:
        experiment = wanted(tmp_path, passes=6, workers=workers, partitions=2)
        node = await w.start_run(experiment)
        await until(await w.watch(node), EXAMPLES)
        await w.cluster.kill(f"worker-{victim}")
        await w.start_worker("late")
        summary = await w.summary(node)
        assert summary["examples"] == 6 * EXAMPLES
        check_close(parameters(tmp_path), await in_one_process(w, experiment, planned))

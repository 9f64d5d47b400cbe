"""Runs of batch algorithms: the coordinator's process with real servers and workers, in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adamctl.config.experiment import Experiment, OptimizerConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.core.progress import BatchProgress
from adamctl.roles.ps.client.parameter_client import read_checkpoint
from adamctl.roles.worker import server as worker_server
from tests.roles.coordinator.played_run import TEST_EXAMPLES, World, make_experiment, until
from tests.roles.coordinator.played_run import world as played_world


def experiment(folder: Path, *, passes: int = 12, optimizer: Any = None, **cluster: Any) -> Experiment:
    train = {"passes": passes, "batch": 4, "evaluate_every": 4.0}
    settings = {"type": "lbfgs", "history": 3, "change_tolerance": 0.0} | (optimizer or {})
    return replace(make_experiment(folder, train=train, **cluster), optimizer=OptimizerConfig(**settings))


@asynccontextmanager
async def world(folder: Path, servers: int = 1, workers: int = 1) -> AsyncIterator[World]:
    async with played_world(folder) as made:
        await made.start_servers(parameter=servers)
        for number in range(workers):
            await made.cluster.start("worker", f"worker-{number}", worker_server.run, {"threads": 1 + number})
        yield made


def last(folder: Path) -> Path:
    return manifest.finished(folder / "checkpoints")[-1]


def parameters(folder: Path) -> bytes:
    """Returns the bits of a run's last parameters."""
    checkpoint = read_checkpoint(last(folder), verify=True)
    rows = [(index, tensor.shape[0]) for index, tensor in enumerate(checkpoint.tensors)]
    return b"".join(checkpoint.rows(index, 0, count)[0][0].tobytes() for index, count in rows)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


async def test_a_run_ends_with_its_budget_and_says_what_it_did(tmp_path: Path) -> None:
    async with world(tmp_path, servers=2) as w:
        folder = await w.start_run(experiment(tmp_path, ps=2))
        await w.ended()
        found = summary(folder)
        batch = found["batch"]
        assert (found["state"], batch["stop_reason"], batch["evaluations"]) == ("ended", "budget", 12)
        assert 0 < batch["iterations"] < 12 and batch["restarts"] == 0
        assert found["passes"] == 12 and len(found["evaluations"]) >= 3
        assert batch["command_seconds"] > 0 and batch["evaluation_seconds"] > 0
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in lines if line["kind"] == "iteration" and line["loss"] is not None]
        assert losses[-1] < losses[0] and found["loss"] == pytest.approx(losses[-1])


async def test_what_algorithm_a_run_is_of_is_told_before_there_are_servers(tmp_path: Path) -> None:
    async with played_world(tmp_path) as w:
        await w.start_run(experiment(tmp_path))
        found = await until(await w.client(), lambda progress: progress.state == "starting")
        assert found.batch == BatchProgress(algorithm="lbfgs")
        status = w.cluster.contexts["coordinator"].status()
        assert status["batch"]["algorithm"] == "lbfgs" and status["passes_total"] == 12


async def test_the_bits_depend_neither_on_servers_nor_on_workers(tmp_path: Path) -> None:
    found = set()
    for servers, workers in ((1, 1), (2, 2)):
        folder = tmp_path / f"{servers}-{workers}"
        folder.mkdir()
        async with world(folder, servers, workers) as w:
            run = await w.start_run(experiment(folder, ps=servers, workers=workers))
            await w.ended()
            found.add(parameters(run))
    assert len(found) == 1


async def test_a_run_that_is_stopped_and_resumed_on_other_servers_has_the_bits_of_one_that_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "straight").mkdir()
    async with world(tmp_path / "straight") as w:
        straight = await w.start_run(experiment(tmp_path / "straight", passes=20))
        await w.ended()
    (tmp_path / "stopped").mkdir()
    async with world(tmp_path / "stopped", servers=3, workers=2) as w:
        first = await w.start_run(experiment(tmp_path / "stopped", passes=20, ps=2))
        client = await w.client()
        await until(client, lambda progress: progress.batch is not None and progress.batch.evaluations >= 7)
        await client.stop("enough for now")
        await w.ended()
        assert summary(first)["state"] == "stopped"
        state = manifest.read_manifest(last(first)).state
        assert state.batch is not None and 0 < state.batch.evaluations < 20
        second = await w.start_run(
            experiment(tmp_path / "stopped", passes=20, ps=3, workers=2), "002", "coordinator-2", resume="auto"
        )
        await w.ended("coordinator-2")
        assert summary(second)["batch"]["evaluations"] == summary(straight)["batch"]["evaluations"] == 20
    assert parameters(second) == parameters(straight)


async def test_a_run_that_converges_ends_before_its_budget(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        folder = await w.start_run(experiment(tmp_path, passes=500, optimizer={"gradient_tolerance": 3e-2}))
        await w.ended()
        found = summary(folder)
        assert found["state"] == "ended" and found["batch"]["stop_reason"] == "gradient"
        assert found["batch"]["gradient_max"] <= 3e-2
        assert manifest.read_manifest(last(folder)).complete
        assert len(found["evaluations"]) > 0


@pytest.mark.parametrize(
    ("reason", "more"), [("gradient", {"gradient_tolerance": 1e-2}), ("change", {"change_tolerance": 1e-4})]
)
async def test_a_run_that_has_ended_by_itself_goes_on_with_a_smaller_tolerance_alone(
    tmp_path: Path, reason: str, more: dict[str, float]
) -> None:
    tolerances = {"gradient_tolerance": 3e-2, "change_tolerance": 0.0} if reason == "gradient" else {
        "gradient_tolerance": 0.0, "change_tolerance": 1e-2
    }  # fmt: skip
    async with world(tmp_path) as w:
        first = await w.start_run(experiment(tmp_path, passes=500, optimizer=tolerances))
        await w.ended()
        assert summary(first)["batch"]["stop_reason"] == reason
        with pytest.raises(ConfigurationError, match=f"by itself .{reason}.*set optimizer.{reason}_tolerance below"):
            await w.start_run(
                experiment(tmp_path, passes=900, optimizer=tolerances), "002", "coordinator-2", resume="auto"
            )
            await w.ended("coordinator-2")
        second = await w.start_run(
            experiment(tmp_path, passes=500, optimizer=tolerances | more), "003", "coordinator-3", resume="auto"
        )
        await w.ended("coordinator-3")
        assert summary(second)["batch"]["stop_reason"] == reason
        assert summary(second)["batch"]["iterations"] > summary(first)["batch"]["iterations"]


async def test_other_settings_do_not_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_run(experiment(tmp_path, passes=4))
        await w.ended()
        await w.start_run(
            experiment(tmp_path, passes=8, optimizer={"history": 5}), "002", "coordinator-2", resume="auto"
        )
        with pytest.raises(ConfigurationError, match="history"):
            await w.ended("coordinator-2")


async def test_a_worker_that_dies_costs_no_bit(tmp_path: Path) -> None:
    found = []
    for dies in (False, True):
        folder = tmp_path / str(dies)
        folder.mkdir()
        async with world(folder, workers=2) as w:
            run = await w.start_run(experiment(folder, passes=20, workers=2))
            if dies:
                client = await w.client()
                await until(client, lambda progress: progress.batch is not None and progress.batch.evaluations >= 3)
                await w.cluster.kill("worker-0")
            await w.ended()
            found.append(parameters(run))
            assert summary(run)["batch"]["evaluations"] == 20
    assert found[0] == found[1]


async def test_a_checkpoint_can_be_asked_for_at_any_time(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        folder = await w.start_run(experiment(tmp_path, passes=40))
        client = await w.client()
        await until(client, lambda progress: progress.batch is not None and progress.batch.evaluations >= 3)
        for _ in range(3):
            await client.checkpoint()
        await w.ended()
        assert len(manifest.finished(folder / "checkpoints")) == 3
        evaluated = [one["pass"] for one in summary(folder)["evaluations"]]
        assert evaluated[-1] == 40 and TEST_EXAMPLES


async def test_a_batch_of_more_examples_than_there_are_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_run(experiment(tmp_path, optimizer={"batch": 97}))
        with pytest.raises(ConfigurationError, match=r"optimizer\.batch"):
            await asyncio.wait_for(w.ended(), 60)

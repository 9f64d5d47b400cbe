"""Checkpoints of whole runs: what is in them, and what goes on from them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from adamctl.config.records import JobRecord, job_key
from adamctl.errors import ConfigurationError
from adamctl.roles.configuration import read_record
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.ps.client.parameter_client import ParameterClient, read_checkpoint
from tests.roles.coordinator.played_run import (
    CLASSES,
    EXAMPLES,
    make_experiment,
    world,
)


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
        assert described.classes == tuple(map(str, range(CLASSES)))
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
        # A complete run goes on with more passes.
        longer = make_experiment(tmp_path, train={"passes": 3})
        await w.start_run(longer, "003", "coordinator-3", resume="auto")
        third = await w.worker("coordinator-3")
        await third.work()
        await w.ended("coordinator-3")
        assert sorted(third.ranges) == [(2, at, at + 8) for at in range(0, EXAMPLES, 8)]


async def test_a_complete_run_with_nothing_left_to_do_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        experiment = make_experiment(tmp_path)
        await w.start_run(experiment)
        await (await w.worker()).work()
        await w.ended()
        await w.start_run(experiment, "002", "coordinator-2", resume="auto")
        with pytest.raises(ConfigurationError, match="has finished its 2 passes"):
            await w.ended("coordinator-2")


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
        context = await w.cluster.context("worker", "reader")
        parameters = ParameterClient.from_context(context, "small-2")
        await parameters.attach(deadline_s=10)
        pulled = np.zeros(parameters.layout.flat_size, np.float32)
        await parameters.pull(pulled)
        for index, tensor in enumerate(parameters.layout.tensors):
            values, _ = read_checkpoint(latest).rows(index, 0, tensor.shape[0])
            np.testing.assert_array_equal(pulled[tensor.offset : tensor.offset + tensor.size], values[0])
        await parameters.close()
        await worker.work()
        await w.ended("coordinator-2")
        record = await read_record(context.controller, job_key("small-2"), JobRecord)
        assert record is not None and not record[0].parameters_only and record[0].restore == str(latest.absolute())
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
        context = await w.cluster.context("worker", "reader")
        parameters = ParameterClient.from_context(context, "small-2")
        await parameters.attach(deadline_s=10)
        record = await read_record(context.controller, job_key("small-2"), JobRecord)
        assert record is not None and record[0].parameters_only and record[0].restore == str(latest.absolute())
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

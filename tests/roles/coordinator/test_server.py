"""The coordinator's process on an in-memory cluster: real controller and servers, played workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment
from adamctl.config.records import JobRecord, NodeRecord, job_key
from adamctl.errors import (
    AdamctlError,
    ConfigurationError,
    DamagedDataError,
    RemoteError,
    RunFailedError,
    UnreachableError,
)
from adamctl.model.description import Model, Softmax
from adamctl.roles.configuration import read_record
from adamctl.roles.coordinator import server
from adamctl.roles.coordinator.client import CoordinatorClient, encode_join_body
from adamctl.roles.coordinator.job import choose_name, keeping
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import RunJoinReply
from tests.roles.coordinator.played_run import (
    CLASSES,
    EXAMPLES,
    make_experiment,
    until,
    world,
)


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
        assert (summary["partitions"], summary["plan_hash"]) == (1, None)
        assert summary["test_top1"] == summary["best_test_top1"] == 0.5
        kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert kinds.count("evaluation") == 2
        found = await read_record(w.cluster.client, job_key("small"), JobRecord)
        assert found is not None and found[0].state == "ended"


async def test_two_jobs_at_once_and_no_more_workers_than_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(parameter=2)
        await w.start_run(make_experiment(tmp_path), "001", "coordinator-a")
        await w.start_run(make_experiment(tmp_path), "002", "coordinator-b")
        first, second = await w.worker("coordinator-a"), await w.worker("coordinator-b")
        assert {first.joined.reply.job, second.joined.reply.job} == {"small", "small-2"}
        with pytest.raises(RemoteError, match="has all of its") as refused:
            await w.worker("coordinator-a", "third")
        assert refused.value.code == ErrorCode.OVER_QUOTA
        await asyncio.gather(first.work(), second.work())
        await w.ended("coordinator-a")
        await w.ended("coordinator-b")


def choosing_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs have each chosen a name before either of them creates its job."""
    both, chosen = asyncio.Barrier(2), []

    async def choose(store: Any, wanted: str, asked_for: bool) -> str:
        name = await choose_name(store, wanted, asked_for)
        chosen.append(name)
        if len(chosen) <= 2:
            await both.wait()
        return name

    monkeypatch.setattr(server, "choose_name", choose)


async def test_of_two_runs_that_choose_one_name_at_once_the_later_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing_together(monkeypatch)
    async with world(tmp_path) as w:
        await w.start_servers()
        nodes = {"coordinator-a": "001", "coordinator-b": "002"}
        starts = (w.start_run(make_experiment(tmp_path), run, node) for node, run in nodes.items())
        folders = await asyncio.gather(*starts)
        workers = [await w.worker(node) for node in nodes]
        await asyncio.gather(*(worker.work() for worker in workers))
        for node in nodes:
            await w.ended(node)
        assert {worker.joined.reply.job for worker in workers} == {"small", "small-2"}
        runs = [json.loads((folder / "summary.json").read_text())["run"] for folder in folders]
        assert runs == [worker.joined.reply.job for worker in workers]


async def test_a_name_asked_for_by_two_runs_at_once_is_taken_by_one_and_refused_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing_together(monkeypatch)
    async with world(tmp_path) as w:
        await w.start_servers()
        nodes = ("coordinator-a", "coordinator-b")
        await asyncio.gather(
            *(w.start_run(make_experiment(tmp_path), node, node, job="mine", tended=True) for node in nodes)
        )
        async with asyncio.timeout(60):
            done, _ = await asyncio.wait([w.cluster.tasks[node] for node in nodes], return_when=asyncio.FIRST_COMPLETED)
        refused = next(node for node in nodes if w.cluster.tasks[node] in done)
        with pytest.raises(RunFailedError, match="another run just took the job name 'mine'"):
            await w.ended(refused)
        (other,) = set(nodes) - {refused}
        await (await w.worker(other)).work()
        await w.ended(other)


async def test_a_name_that_was_asked_for_and_is_running_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path), job="mine")
        worker = await w.worker()
        with pytest.raises(ConfigurationError, match="job 'mine' is already running"):
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


async def test_a_number_of_partitions_that_nobody_has_settled_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        experiment = make_experiment(tmp_path)
        cluster = msgspec.structs.replace(experiment.cluster, partitions="auto")
        with pytest.raises(ConfigurationError, match="partitions = auto: a coordinator expects a number"):
            await w.start_run(msgspec.structs.replace(experiment, cluster=cluster))


def test_an_experiment_that_is_not_text_is_a_configuration_error(tmp_path: Path) -> None:
    experiment, path = make_experiment(tmp_path), tmp_path / "experiment.json"
    path.write_bytes(msgspec.json.encode(experiment))
    assert server.load(str(path)) == experiment
    path.write_bytes(path.read_bytes().replace(b'"small"', b'"sm\xffll"'))
    with pytest.raises(ConfigurationError, match=r"--experiment .*experiment\.json: 'utf-8' codec"):
        server.load(str(path))


async def test_an_experiment_that_a_worker_cannot_read_is_damage(tmp_path: Path) -> None:
    body = encode_join_body(make_experiment(tmp_path), ("data-0",)).replace(b"data-0", b"data-\xff")
    reply = SimpleNamespace(message=RunJoinReply("small", "", 1, 0, "", 2), body=body, release=lambda: None)
    client = CoordinatorClient(SimpleNamespace(request=AsyncMock(return_value=reply)))  # type: ignore[arg-type]
    with pytest.raises(DamagedDataError, match="coordinator of small sent an experiment that cannot be parsed"):
        await client.join("w", 1, 1)


def test_a_durable_job_is_given_servers_with_stores_only() -> None:
    nodes = [NodeRecord(f"ps-{number}", "ps", 1, (), "h", 1, stores=number > 0) for number in range(3)]
    assert keeping(nodes, "durable") == nodes[1:]
    assert keeping(nodes, "replicated") == keeping(nodes, "applied") == nodes


async def test_a_status_request_waits_for_the_state_to_change(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        state = (await (await w.client()).status()).state
        waiting = asyncio.ensure_future((await w.client()).status(state, wait_s=20.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        work = asyncio.ensure_future(worker.work())
        assert (await waiting).state != state
        await work
        await w.ended()


async def test_each_front_end_that_is_there_hears_of_the_end(tmp_path: Path) -> None:
    """One that asks often must not keep it from one that asks seldom."""
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        seldom, often, gone = await w.client(), await w.client(), await w.client()
        for client in (seldom, often, gone):
            assert not (await client.status()).final
        await gone.close()
        worker = await w.worker()
        assert await worker.work() == "ended"
        assert (await until(often, lambda p: p.final)).state == "ended"
        await asyncio.sleep(0.3)
        assert not w.cluster.tasks["coordinator"].done()
        assert (await seldom.status()).state == "ended"
        await w.ended()

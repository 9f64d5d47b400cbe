"""Clients for other frameworks: how jobs end, who takes part, what a killed server or process does to the others."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import adamctl as adam
from adamctl.api.parameter_client.arrays import make_tensors
from adamctl.cli.cluster.state import ClusterReader
from adamctl.cli.main import application
from adamctl.config.records import JobRecord, NodeRecord, node_key
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.model.layout import cut_layout
from adamctl.model.rule import RuleConfig
from adamctl.roles.configuration import nodes_of, read_record
from adamctl.roles.coordinator.job import job_changes
from adamctl.roles.ps.client.parameter_client import PendingPush, PushOutcome
from adamctl.wire.messages import NodeRegisterRequest
from tests.api.cluster_for_tests import TOKEN, address_of, client, start


async def make_job(name: str, maker: adam.AsyncParameterClient) -> None:
    """Makes a job of one array, "w" [30, 7], whose values `maker` does not give."""
    _, entries = await maker._store.read("/nodes/")
    servers: list[NodeRecord] = nodes_of(entries, "ps")
    layout = cut_layout(make_tensors({"w": (30, 7)}), len(servers))
    record = JobRecord("running", layout.hash, RuleConfig("add"), 0, maker._identity.node)
    changes = job_changes(name, record, layout, len(servers), servers)
    assert not (await maker._store.compare_and_set(changes)).conflicts


async def test_a_registration_that_comes_again_deposes_nobody(url: str) -> None:
    async with adam.AsyncParameterClient(url, token=TOKEN, deadline_s=60) as ps:
        found = await read_record(ps._store, node_key(ps._identity.node), NodeRecord)
        assert found is not None
        record, _ = found
        again = NodeRegisterRequest(record.node, record.role, (), record.host, record.pid, process=record.process)
        assert (await ps._store.register(again, deadline_s=60)).incarnation == record.incarnation
        assert await read_record(ps._store, node_key(ps._identity.node), NodeRecord) == found


class TestEnding:
    def test_whoever_uses_an_ended_job_is_told_and_a_new_one_of_the_name_begins_anew(self, url: str) -> None:
        with client(url) as first, client(url) as second, client(url) as third:
            first.register([np.ones(3)])
            second.register([np.ones(3)])
            first.close(end=True)
            (params,) = third.register([np.full(3, 5.0)])
            assert third.created and (params == 5).all()
            assert third.job == f"{url.rpartition('/')[2]}~2"
            with pytest.raises(RunFailedError, match="has ended"):
                second.push([np.ones(3)])
                second.wait()
            third.close(end=True)

    def test_from_the_command_line(self, cluster: str, url: str) -> None:
        with client(url) as ps:
            ps.register([np.ones(3)])
            command = ["run", "stop", ps.job, "--controller", cluster]
            assert "has ended" in CliRunner(env={"ADAMCTL_TOKEN": TOKEN}).invoke(application, command).stdout
            again = CliRunner(env={"ADAMCTL_TOKEN": TOKEN}).invoke(application, command).exception
            assert isinstance(again, ConfigurationError) and "expected a running job" in str(again)
            with client(url) as other:
                other.register([np.ones(3)])
                assert other.created
                other.close(end=True)

    async def test_a_job_whose_maker_died_before_it_gave_values_is_made_anew(self, url: str) -> None:
        """At first the maker is another living client, which is waited for; then it is gone."""
        name = url.rpartition("/")[2]
        maker = adam.AsyncParameterClient(url, token=TOKEN)
        await maker.connect()
        other = adam.AsyncParameterClient(url, token=TOKEN, deadline_s=60)
        await other.connect()
        await make_job(name, maker)
        registering = asyncio.ensure_future(other.register({"w": np.full((30, 7), 3.0)}))
        await asyncio.sleep(0.3)
        assert not registering.done()
        await maker.close()
        params = await registering
        assert (params["w"] == 3).all() and other.created and other.job == f"{name}~2"
        await other.close(end=True)

    async def test_a_client_does_not_wait_for_values_that_it_should_have_given_itself(self, url: str) -> None:
        """It made the job, and its call failed before it gave them, or before it could end the job."""
        name = url.rpartition("/")[2]
        async with adam.AsyncParameterClient(url, token=TOKEN, deadline_s=20) as ps:
            await make_job(name, ps)
            params = await ps.register({"w": np.full((30, 7), 3.0)})
            assert (params["w"] == 3).all() and ps.created and ps.job == f"{name}~2"
            await ps.close(end=True)


@pytest.mark.parametrize("why", [MemoryError("no room"), asyncio.CancelledError()])
async def test_a_push_that_fails_in_whatever_way_is_never_taken_for_acknowledged(
    url: str, monkeypatch: pytest.MonkeyPatch, why: BaseException
) -> None:
    async def fail(push: PendingPush) -> PushOutcome:
        raise why

    async with adam.AsyncParameterClient(url, token=TOKEN, deadline_s=60) as ps:
        await ps.register([np.zeros(3)])
        with monkeypatch.context() as patch:
            patch.setattr(PendingPush, "__await__", lambda push: fail(push).__await__())
            await ps.add([np.ones(3)])
            with pytest.raises(RunFailedError, match="a push failed, and may or may not have been applied") as caught:
                await ps.wait()
        assert caught.value.__cause__ is why
        await ps.wait()  # told once
        await ps.close(end=True)


async def test_the_cluster_shows_who_takes_part(cluster: str, url: str) -> None:
    async with adam.AsyncParameterClient(url, token=TOKEN) as ps, ClusterReader([cluster], TOKEN) as reader:
        await ps.register([np.ones(3)])
        found = await reader.read()
        (shown,) = [node for node in found["nodes"] if node["role"] == "client"]
        assert shown["answers"]
        (job,) = [job for job in found["jobs"] if job["job"] == ps.job]
        assert (job["state"], job["coordinator"]) == ("running", shown["node"])
        await ps.close(end=True)


def test_durable_pushes_survive_a_server_that_is_killed(tmp_path: Path) -> None:
    controller = start("controller", "start", "--dir", str(tmp_path / "controller"))
    processes = [controller]
    try:
        address = address_of(controller)
        options = ("ps", "start", "--name", "ps-0", "--controller", address, "--store", str(tmp_path / "store"))
        processes.append(start(*options))
        address_of(processes[-1])
        with client(f"adam://{address}/job") as ps:
            ps.register([np.full((300, 40), 2.0)], rule=adam.SGD(1.0), acks="durable")
            for _ in range(5):
                ps.push([np.ones((300, 40))])
            ps.wait()
            processes[-1].kill()
            processes.append(start(*options))
            address_of(processes[-1])
            ps.push([np.ones((300, 40))])
            ps.wait()
            assert (ps.pull()[0] == -4).all()
            with client(f"adam://{address}/job") as other:
                assert (other.register([np.zeros((300, 40))])[0] == -4).all()
            with client(f"adam://{address}/job") as other, pytest.raises(ConfigurationError, match="acks"):
                other.register([np.zeros((300, 40))], acks="applied")
            ps.close(end=True)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.communicate(timeout=30)


# --- training in two processes ----------------------------------------------------------------------------------------


def problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of A x = b, of a solution that is the same for all seeds."""
    solution = np.random.default_rng(0).standard_normal(20)
    rows = np.random.default_rng(seed).standard_normal((400, 20))
    return rows, rows @ solution


def train(url: str, seed: int, steps: int, ready: Any) -> None:
    """A replica: pulls, takes the gradient on a batch of its own rows, pushes; 0 steps: until it is killed."""
    rows, wanted = problem(seed)
    generator = np.random.default_rng(seed)
    with client(url) as ps:
        params = ps.register({"x": np.zeros(20)}, rule=adam.Adagrad(0.5))
        ready.put(seed)
        step = 0
        while not steps or step < steps:
            chosen = generator.integers(0, len(rows), 32)
            error = rows[chosen] @ params["x"] - wanted[chosen]
            ps.push({"x": rows[chosen].T @ error / 32}, examples=32)
            params = ps.pull()
            step += 1


def test_two_processes_solve_least_squares_and_one_that_is_killed_does_not_stop_the_other(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    processes = [context.Process(target=train, args=(url, seed, steps, ready)) for seed, steps in ((1, 0), (2, 600))]
    with client(url) as ps:
        try:
            for process in processes:
                process.start()
            for _ in processes:
                ready.get(timeout=60)
            params = ps.register()
            threading.Event().wait(0.2)
            os.kill(processes[0].pid or 0, signal.SIGKILL)
            processes[1].join(60)
            assert processes[1].exitcode == 0
            params = ps.pull()
            assert np.abs(params["x"] - np.random.default_rng(0).standard_normal(20)).max() < 0.05
            ps.close(end=True)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join(30)

"""The server's own part: options, quota, status, checkpoints while pushes go on, restoring onto other servers."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, encode, job_key, layout_key
from adamctl.errors import RemoteError
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps import server
from adamctl.roles.ps.client.parameter_client import load_parameters, read_checkpoint
from adamctl.roles.ps.jobs import copy_builder as jobs
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import (
    ConfigChanges,
    PullRequest,
    PushPart,
    PushRequest,
    PushSource,
    RunJoinRequest,
)
from tests.cluster import memory_cluster
from tests.roles.manifests_for_tests import finish
from tests.roles.ps.ps_cluster import (
    add_job,
    checkpoint,
    constant,
    make_client,
    make_tensors,
    pulled,
    push_of,
    random_flat,
    start_servers,
)
from tests.roles.ps.sharing_world import JOB, sharing_world


async def test_a_job_that_does_not_fit_is_refused_with_what_to_do() -> None:
    async with memory_cluster(20) as cluster:
        context = await cluster.start("ps", "ps-0", server.run, {"apply_threads": "1", "memory": "100KB"})
        await add_job(cluster, "small", ["ps-0"], RuleConfig("sgd"))
        await add_job(cluster, "big", ["ps-0"], RuleConfig("adagrad"), shapes=((200, 100), (200,)))
        client = await make_client(cluster, "small", "v")
        with pytest.raises(RemoteError, match="--memory") as caught:
            await make_client(cluster, "big", "w")
        assert caught.value.code == ErrorCode.OVER_QUOTA
        assert context.status()["jobs"]["big"]["state"].startswith("failed")
        await pulled(client)  # the other one is served on
        await client.close()


@pytest.mark.parametrize(("error", "why"), [(MemoryError(), "not enough memory"), (IndexError("x"), "see its log")])
async def test_a_job_whose_buckets_cannot_be_made_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def fail(*arguments: Any) -> Any:
        raise error

    async with memory_cluster(28) as cluster, asyncio.timeout(20):
        context = await cluster.start("ps", "ps-0", server.run, {"apply_threads": "1"})
        monkeypatch.setattr(jobs, "build_buckets", fail)
        await add_job(cluster, "a", ["ps-0"], RuleConfig("sgd"))
        with pytest.raises(RemoteError, match=why) as caught:
            await make_client(cluster, "a", "w")
        assert caught.value.code == ErrorCode.INTERNAL
        assert why in context.status()["jobs"]["a"]["state"]


async def test_a_request_that_is_no_parameter_servers_is_refused() -> None:
    async with memory_cluster(21) as cluster:
        await start_servers(cluster, "ps-0")
        context = await cluster.context("worker", "w")
        connection = await context.connect("ps-0", deadline_s=10)
        with pytest.raises(RemoteError) as caught:
            await connection.request(RunJoinRequest("w", 0, 1), deadline_s=10)
        assert caught.value.code == ErrorCode.UNKNOWN_OPCODE
        await connection.close()


async def test_status_has_plain_values_that_add_up() -> None:
    async with memory_cluster(22) as cluster:
        (context,) = await start_servers(cluster, "ps-0", threads=2)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("momentum"))
        client = await make_client(cluster, "a", "w")
        for number in range(3):
            await client.push(push_of(layout, random_flat(layout, number)))
        status = json.loads(json.dumps(context.status()))
        assert status["pushes"] == status["jobs"]["a"]["pushes"] == 3
        assert status["updates"] == 3 * layout.parameter_count
        assert status["bytes"] == 8 * layout.parameter_count
        assert status["buckets"] == len(layout.buckets) and status["shards"] == len(layout.shards)
        assert status["queued_updates"] == status["queued_bytes"] == 0
        assert len(status["apply_busy"]) == 2 and status["updates_per_s"] > 0
        assert status["staleness_p50"] >= 0
        await client.close()


@pytest.mark.parametrize("servers", [("ps-0", "ps-1"), ("ps-2",), ("ps-0", "ps-1", "ps-2")])
async def test_a_job_goes_on_from_its_checkpoint_on_any_number_of_servers(
    tmp_path: Path, servers: tuple[str, ...]
) -> None:
    """Values and rule state: the same further pushes give the same weights as without the interruption."""
    async with memory_cluster(23) as cluster:
        await start_servers(cluster, "ps-0", "ps-1", "ps-2")
        layout = await add_job(cluster, "a", ["ps-0", "ps-1"], RuleConfig("adagrad"))
        client = await make_client(cluster, "a", "w")
        for number in range(4):
            await client.push(push_of(layout, random_flat(layout, number), 0.1))
        folder = tmp_path / "checkpoint"
        files = await checkpoint(cluster, "a", folder)
        assert len(files) == 2 and sorted(s for file in files for s in file.shards) == list(range(len(layout.shards)))
        finish(folder, files, layout.hash)
        saved = load_parameters(folder)
        for tensor, found in zip(layout.tensors, await pulled(client), strict=True):
            np.testing.assert_array_equal(saved[tensor.name], found)
        resumed_layout = await add_job(cluster, "b", servers, RuleConfig("adagrad"), restore=str(folder))
        resumed = await make_client(cluster, "b", "v")
        for one, other in zip(await pulled(client), await pulled(resumed), strict=True):
            np.testing.assert_array_equal(one, other)
        for number in range(4, 7):
            flat = random_flat(layout, number)
            again = np.zeros(resumed_layout.flat_size, np.float32)
            again[: flat.size] = flat
            await client.push(push_of(layout, flat, 0.1))
            await resumed.push(push_of(resumed_layout, again, 0.1))
        for one, other in zip(await pulled(client), await pulled(resumed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)  # a cut may end vectors elsewhere
        await client.close()
        await resumed.close()


async def test_the_memory_of_pushes_comes_back_with_the_checkpoint(tmp_path: Path) -> None:
    async with memory_cluster(24) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w")
        flat = constant(layout, 1.0)
        flat[layout.shards[2].offset] = np.nan
        await client.push(push_of(layout, flat, kind="delta"))
        finish(tmp_path, await checkpoint(cluster, "a", tmp_path), layout.hash)
        image = {i.record.shard: i.record for i in read_checkpoint(tmp_path, verify=True).images()}
        assert image[0].pushes == image[0].counter == 1
        assert image[2].pushes == 0 and image[2].memory.clients[0].refused == {1: ErrorCode.NOT_FINITE}
        await add_job(cluster, "b", ["ps-0"], RuleConfig("add"), restore=str(tmp_path))
        context = cluster.contexts["w"]
        again = type(client).from_context(context, "b")
        await again.attach(deadline_s=20)
        assert set(again.issued.tolist()) == {1}  # numbers go on where the checkpoint knows them to be
        flat = np.zeros(layout.flat_size, np.float32)
        found = await again.pull(flat)
        assert set(found.sequences.tolist()) == {1}
        await client.close()
        await again.close()


async def test_each_shard_is_saved_at_one_version_while_pushes_go_on(tmp_path: Path) -> None:
    async with memory_cluster(25) as cluster:
        await start_servers(cluster, "ps-0", "ps-1")
        layout = await add_job(cluster, "a", ["ps-0", "ps-1"], RuleConfig("add"), shapes=((64, 3000), (64,)))
        client = await make_client(cluster, "a", "w")
        flat = constant(layout, 0.0)
        await client.pull(flat)
        await client.push(push_of(layout, -flat, kind="delta"))
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await client.push(push_of(layout, constant(layout, 1.0), kind="delta"))

        writing = asyncio.create_task(write())
        try:
            for number in range(4):
                folder = tmp_path / str(number)
                finish(folder, await checkpoint(cluster, "a", folder), layout.hash)
        finally:
            stop.set()
            await writing
        for number in range(4):
            for image in read_checkpoint(tmp_path / str(number), verify=True).images():
                (value,) = set(image.values.tolist())  # one version, not torn
                assert value == image.record.pushes - 1 == image.record.memory.clients[0].sequence - 1
        await client.close()


async def test_a_folder_that_cannot_be_written_is_named_and_training_goes_on(tmp_path: Path) -> None:
    async with memory_cluster(26) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w")
        (tmp_path / "file").write_text("")
        with pytest.raises(RemoteError, match="ps-0"):
            await checkpoint(cluster, "a", tmp_path / "file" / "folder")
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        await client.close()


async def test_a_damaged_checkpoint_is_refused_with_what_is_damaged(tmp_path: Path) -> None:
    async with memory_cluster(27) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w")
        files = await checkpoint(cluster, "a", tmp_path)
        finish(tmp_path, files, layout.hash)
        path = tmp_path / files[0].name
        content = bytearray(path.read_bytes())
        content[-60] ^= 1
        path.write_bytes(content)
        await add_job(cluster, "b", ["ps-0"], RuleConfig("add"), restore=str(tmp_path))
        with pytest.raises(RemoteError, match=path.name) as caught:
            await make_client(cluster, "b", "v")
        assert caught.value.code == ErrorCode.DAMAGED_DATA
        await client.close()


async def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    async with memory_cluster(28) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w")
        finish(tmp_path, await checkpoint(cluster, "a", tmp_path), layout.hash)
        await add_job(cluster, "b", ["ps-0"], RuleConfig("add"), shapes=((3, 3), (3,)), restore=str(tmp_path))
        with pytest.raises(RemoteError, match="another model"):
            await make_client(cluster, "b", "v")
        await client.close()


async def test_a_job_whose_name_is_used_anew_begins_anew() -> None:
    async with memory_cluster(29) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), seed=1)
        client = await make_client(cluster, "a", "w")
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        before = await pulled(client)
        await client.close()
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), seed=2)
        async with asyncio.timeout(20):
            while cluster.contexts["ps-0"].status()["pushes"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        client = await make_client(cluster, "a", "v")
        assert not np.allclose((await pulled(client))[0], before[0])
        await client.close()


async def test_a_server_that_was_restarted_does_not_serve_initial_values_as_if_nothing_had_happened() -> None:
    """I8: a restarted process never resumes with lost memory."""
    async with memory_cluster(30) as cluster:
        await start_servers(cluster, "ps-0", "ps-1")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        await cluster.stop("ps-0")
        (again,) = await start_servers(cluster, "ps-0")
        with pytest.raises(RemoteError, match="ps-0 was restarted"):
            await client.pull(np.zeros(layout.flat_size, np.float32), deadline_s=20)
        await add_job(cluster, "b", ["ps-0"], RuleConfig("add"))  # new jobs are welcome
        await (await make_client(cluster, "b", "v")).close()
        assert again.status()["jobs"]["a"]["state"].startswith("failed")
        await client.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_answer_that_fits_into_no_frame_is_refused_and_costs_nobody_else_theirs(
    tmp_path: Path, dtype: str
) -> None:
    async with sharing_world(tmp_path) as world:
        client = await world.client("tcp")
        connection = await client.channel("ps-0").connected()
        epochs, shard = client.routing.epochs_of((0,)), client.layout.shards[0]
        source = PushSource(UpdateKind.DELTA, 0, 0, shard.row_stop, 0)
        pushes = [PushRequest(JOB, epochs, 1.0, 1, 1, (source,), (PushPart(0, number, 0),)) for number in (1, 2)]
        ones = np.ones(shard.size, np.float32)
        first, too_much, second = await asyncio.gather(
            connection.request(pushes[0], [ones], deadline_s=10),
            connection.request(PullRequest(JOB, epochs, (0,) * 300, dtype), deadline_s=10),  # waits for the first
            connection.request(pushes[1], [ones], deadline_s=10),
            return_exceptions=True,
        )
        assert isinstance(too_much, RemoteError) and too_much.code == ErrorCode.WRONG_LENGTH
        for reply in (first, second):
            assert not isinstance(reply, BaseException), reply
            assert reply.message.results[0].code == ErrorCode.OK
        assert not world.server.core.jobs[JOB].shards[0].values.readers


async def test_memory_of_a_job_that_ends_while_it_is_made_is_given_back_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on, build = threading.Event(), threading.Event(), jobs.build_buckets

    def held(*arguments: Any) -> Any:
        reached.set()
        assert go_on.wait(20)
        return build(*arguments)

    async with sharing_world(tmp_path) as world, asyncio.timeout(60):
        await world.client("tcp")  # the first job is served
        monkeypatch.setattr(jobs, "build_buckets", held)
        record = LayoutRecord(make_tensors(), 1)
        layout = record.layout()
        made = JobRecord("running", layout.hash, RuleConfig("add"), 1)
        puts = {job_key("b"): encode(made), layout_key("b"): encode(record)}
        puts |= {bucket_key("b", bucket.index): encode(BucketRecord(1, "ps-0")) for bucket in layout.buckets}
        await world.store.compare_and_set(ConfigChanges({}, puts))
        await asyncio.to_thread(reached.wait, 20)
        ended = encode(msgspec.structs.replace(made, state="ended"))
        await world.store.compare_and_set(ConfigChanges({}, {job_key("b"): ended}))
        while "b" in world.server.core.jobs:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (making,) = (task for task in world.server._background.tasks if "_make" in str(task.get_coro()))
        go_on.set()
        await making
        assert not sum(world.server._keeper.memory.building.values())

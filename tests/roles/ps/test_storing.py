"""A server with a store: what it takes up again after a restart, for whom, and what happens when the disk does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import pytest

from adamctl.config.records import JobRecord, decode, encode, job_key
from adamctl.errors import DamagedDataError, RemoteError, RunFailedError
from adamctl.kernels.rules.add import Add
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.roles.context import RoleContext
from adamctl.roles.ps import server
from adamctl.roles.ps.client import ParameterClient
from adamctl.roles.ps.store import LogStore, NoSpaceError
from adamctl.roles.ps.storing import Storing
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges
from tests.cluster import ClusterInMemory, memory_cluster
from tests.roles.ps.ps_cluster import add_job, make_client, pulled, start_servers
from tests.roles.ps.test_client import constant, push_of, random_flat


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert what


async def crash(cluster: ClusterInMemory, node: str, patch: pytest.MonkeyPatch) -> None:
    """Ends a server without its last words: what is not on disk is lost."""

    async def no_last_words(storing: Storing) -> None:
        storing._closed = True
        storing._groups.put(None)
        await asyncio.to_thread(storing._thread.join)
        storing.store.close()

    with patch.context() as context:
        context.setattr(Storing, "close", no_last_words)
        await cluster.kill(node)


async def start(cluster: ClusterInMemory, folder: Path, **options: Any) -> RoleContext:
    (context,) = await start_servers(cluster, "ps-0", store=str(folder), **options)
    return context


async def add(client: ParameterClient, layout: ParameterLayout, value: float = 1.0) -> None:
    await client.push(push_of(layout, constant(layout, value), kind="delta"))


async def zeroed(cluster: ClusterInMemory, job: str, layout: ParameterLayout) -> ParameterClient:
    """A client that has made all values 0, with its first push."""
    client = await make_client(cluster, job, "w", attempt_s=1.0)
    flat = constant(layout, 0.0)
    await client.pull(flat)
    await client.push(push_of(layout, -flat, kind="delta"))
    return client


def value_of(arrays: list[np.ndarray]) -> float:
    (value,) = {float(value) for array in arrays for value in array.ravel()}
    return value


async def test_everything_is_there_again_after_an_orderly_restart(tmp_path: Path) -> None:
    async with memory_cluster(40) as cluster:
        await start(cluster, tmp_path)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("adam"))
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        for number in range(4):
            await client.push(push_of(layout, random_flat(layout, number), 0.1))
        before = await pulled(client)
        await cluster.stop("ps-0")
        context = await start(cluster, tmp_path)
        for one, other in zip(before, await pulled(client), strict=True):
            np.testing.assert_array_equal(one, other)
        assert set(client.routing.epochs) == {2}, "what is taken up again has a new epoch"
        flat = np.zeros(layout.flat_size, np.float32)
        found = await client.pull(flat)
        assert set(found.versions.tolist()) == {4} and set(found.sequences.tolist()) == {4}
        assert context.status()["jobs"]["a"]["rolled_back"] == {"shards": 0, "pushes": 0}
        await client.push(push_of(layout, random_flat(layout, 9), 0.1))
        assert context.status()["store"]["degraded"] == ""
        await client.close()


async def test_the_rules_state_comes_back_too(tmp_path: Path) -> None:
    """The same pushes with a restart in the middle give the same weights as without one."""
    async with memory_cluster(41) as cluster:
        await start(cluster, tmp_path)
        await start_servers(cluster, "ps-1")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("momentum"))
        await add_job(cluster, "b", ["ps-1"], RuleConfig("momentum"))
        restarted, steady = await make_client(cluster, "a", "w", attempt_s=1.0), await make_client(cluster, "b", "v")
        for number in range(6):
            if number == 3:
                await cluster.stop("ps-0")
                await start(cluster, tmp_path)
            for client in (restarted, steady):
                await client.push(push_of(layout, random_flat(layout, number), 0.1))
        for one, other in zip(await pulled(restarted), await pulled(steady), strict=True):
            np.testing.assert_array_equal(one, other)
        await restarted.close()
        await steady.close()


async def test_durable_loses_nothing_and_applies_nothing_twice(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(42) as cluster:
        await start(cluster, tmp_path, loss_window_s=60.0)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        for number in range(3):
            await add(client, layout)
            await crash(cluster, "ps-0", monkeypatch)
            context = await start(cluster, tmp_path, loss_window_s=60.0)
            assert value_of(await pulled(client)) == number + 1
        assert context.status()["jobs"]["a"]["rolled_back"]["pushes"] == 0
        assert context.status()["jobs"]["a"]["acks"] == "durable"
        await client.close()


async def test_applied_loses_what_the_window_allows_tells_so_and_goes_on(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(43) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=1.0)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "a", layout)
        await add(client, layout)
        await until(lambda: context.status()["store"]["loss_window_bytes"] == 0, "saved in the background")
        for _ in range(4):
            await add(client, layout)
        await crash(cluster, "ps-0", monkeypatch)
        context = await start(cluster, tmp_path, loss_window_s=60.0)
        for _ in range(2):
            await add(client, layout)
        assert value_of(await pulled(client)) == 1 + 2
        rolled_back = context.status()["jobs"]["a"]["rolled_back"]
        assert rolled_back == {"shards": len(layout.shards), "pushes": 4 * len(layout.shards)}
        await client.close()


async def test_a_push_on_its_way_at_the_crash_is_applied_once(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(44) as cluster:
        await start(cluster, tmp_path, loss_window_s=0.2)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        under_way = [client.start_push(push_of(layout, constant(layout, 1.0), kind="delta")) for _ in range(8)]
        await crash(cluster, "ps-0", monkeypatch)
        await start(cluster, tmp_path, loss_window_s=0.2)
        for push in under_way:
            await push.wait(20)
        assert value_of(await pulled(client)) == 8
        await client.close()


async def test_shards_never_written_are_as_their_job_began(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(45) as cluster:
        await start(cluster, tmp_path, loss_window_s=60.0)
        await add_job(cluster, "a", ["ps-0"], RuleConfig("sgd"))
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        before = await pulled(client)
        await crash(cluster, "ps-0", monkeypatch)
        await start(cluster, tmp_path)
        for one, other in zip(before, await pulled(client), strict=True):
            np.testing.assert_array_equal(one, other)
        await client.close()


async def test_an_empty_store_takes_nothing_up(tmp_path: Path) -> None:
    """I8: initial values are never served as if nothing had happened."""
    async with memory_cluster(46) as cluster:
        await start(cluster, tmp_path / "one")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "a", layout)
        await cluster.stop("ps-0")
        await start(cluster, tmp_path / "other")
        with pytest.raises(RemoteError, match="ps-0 was restarted"):
            await client.pull(np.zeros(layout.flat_size, np.float32), deadline_s=20)
        await client.close()


async def end(cluster: ClusterInMemory, job: str) -> None:
    _, entries = await cluster.client.read(job_key(job))
    (entry,) = [entry for entry in entries if entry.key == job_key(job)]
    ended = msgspec.structs.replace(decode(entry.value, JobRecord), state="ended")
    await cluster.client.compare_and_set(ConfigChanges({}, {entry.key: encode(ended)}))


@pytest.mark.parametrize("away", [False, True])
async def test_a_job_that_has_ended_frees_its_records(tmp_path: Path, away: bool) -> None:
    """Also if it ended while the server was away."""
    async with memory_cluster(47) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "a", layout)
        await until(lambda: context.status()["store"]["live_bytes"] > 4 * layout.parameter_count, "saved")
        await client.close()
        if away:
            await cluster.stop("ps-0")
        await end(cluster, "a")
        if away:
            context = await start(cluster, tmp_path, loss_window_s=0.1)
        await until(lambda: context.status()["store"]["log_bytes"] == 0, "freed")
        assert context.status()["store"]["jobs_not_served"] == {}


async def test_a_job_that_nobody_knows_is_kept_and_one_that_looks_the_same_begins_anew(tmp_path: Path) -> None:
    """Another controller, which gives the same names and revisions: the folder may come back to the first one."""
    async with memory_cluster(48) as cluster:
        await start(cluster, tmp_path)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "a", layout)
        await client.close()
    async with memory_cluster(48) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        assert list(context.status()["store"]["jobs_not_served"]) == ["a"]
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        assert np.abs((await pulled(client))[0]).max() > 0, "initial values, not those of the former job"
        assert context.status()["store"]["jobs_not_served"] == {}
        before = await pulled(client)
        await cluster.stop("ps-0")
        await start(cluster, tmp_path)
        for one, other in zip(before, await pulled(client), strict=True):
            np.testing.assert_array_equal(one, other)
        await client.close()


async def test_without_space_it_goes_on_from_memory_acknowledges_nothing_as_durable_and_says_so(
    tmp_path: Path, monkeypatch
) -> None:
    async with memory_cluster(49) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "fast", ["ps-0"], RuleConfig("add"))
        await add_job(cluster, "safe", ["ps-0"], RuleConfig("add"), acks="durable")
        fast, safe = await zeroed(cluster, "fast", layout), await make_client(cluster, "safe", "v")
        with monkeypatch.context() as patch:

            def no_space(*arguments: object) -> None:
                raise NoSpaceError("No space left on device")

            patch.setattr(LogStore, "write", no_space)
            await add(fast, layout)
            await until(lambda: context.status()["store"]["degraded"], "it says so")
            await asyncio.sleep(0.3)
            await add(fast, layout)  # far beyond the loss window
            waiting = safe.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            await asyncio.sleep(0.3)
            assert not waiting.done and context.status()["store"]["pushes_waiting"] == 1
            assert value_of(await pulled(fast)) == 2
        await waiting.wait(20)
        await until(lambda: not context.status()["store"]["degraded"], "there is room again")
        await fast.close()
        await safe.close()


async def test_a_failed_write_ends_the_server_and_nothing_more_is_acknowledged(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(50) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=60.0)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await make_client(cluster, "a", "w", attempt_s=1.0)

        def fail(*arguments: object) -> None:
            raise RunFailedError("log.mdb cannot be written: Input/output error")

        monkeypatch.setattr(LogStore, "write", fail)
        waiting = client.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
        async with asyncio.timeout(20):
            await context.stopping.wait()
        assert isinstance(context.failure, RunFailedError) and "Input/output" in str(context.failure)
        assert not waiting.done
        await client.close()


async def test_the_loss_window_holds_acknowledgements_back(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(51) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.2)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "a", layout)
        disk = threading.Event()
        write = LogStore.write

        def slow_write(store: LogStore, *arguments: Any) -> list[int]:
            assert disk.wait(20)
            return write(store, *arguments)

        monkeypatch.setattr(LogStore, "write", slow_write)
        await add(client, layout)
        await asyncio.sleep(0.4)
        held = [client.start_push(push_of(layout, constant(layout, 1.0), kind="delta")) for _ in range(3)]
        await until(lambda: context.status()["store"]["pushes_held_back"] == 3, "they are applied, and not answered")
        assert context.status()["store"]["loss_window_s"] > 0.2
        disk.set()
        for push in held:
            await push.wait(20)
        await client.close()


async def test_durable_without_a_store_is_refused() -> None:
    async with memory_cluster(52) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        with pytest.raises(RemoteError, match="--store") as caught:
            await make_client(cluster, "a", "w")
        assert caught.value.code == ErrorCode.BAD_CONFIGURATION


async def test_a_damaged_store_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "log.mdb").write_bytes(b"\0" * 50_000)
    async with memory_cluster(53) as cluster:
        context = await cluster.context("ps", "ps-0", {"apply_threads": "1", "store": str(tmp_path)})
        with pytest.raises(DamagedDataError, match="last checkpoint"):
            await server.run(context)


async def test_a_server_killed_before_anything_of_a_job_is_on_disk_makes_its_buckets_anew(
    tmp_path: Path, monkeypatch
) -> None:
    """Nobody has been served: initial values are what the job is at."""
    async with memory_cluster(54) as cluster:
        holding = asyncio.Event()

        async def held_up(storing: Storing, *arguments: Any) -> None:
            holding.set()
            await asyncio.sleep(60)

        with monkeypatch.context() as patch:
            patch.setattr(Storing, "hold", held_up)
            await start(cluster, tmp_path)
            layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
            async with asyncio.timeout(20):
                await holding.wait()
            await crash(cluster, "ps-0", monkeypatch)
        context = await start(cluster, tmp_path)
        client = await zeroed(cluster, "a", layout)
        await add(client, layout)
        assert value_of(await pulled(client)) == 1
        assert context.status()["jobs"]["a"]["rolled_back"]["pushes"] == 0
        await client.close()


@pytest.mark.parametrize("acks", ["applied", "durable"])
async def test_initial_values_that_were_given_survive_a_crash_once_they_are_acknowledged(
    tmp_path: Path, monkeypatch, acks
) -> None:
    """The window allows to lose what came later, not what a job cannot do without."""
    async with memory_cluster(55) as cluster:
        await start(cluster, tmp_path, loss_window_s=60.0)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks=acks, distribution="given")
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        await add(client, layout, 5.0)
        if acks == "applied":
            await add(client, layout, 1.0)
        await crash(cluster, "ps-0", monkeypatch)
        await start(cluster, tmp_path, loss_window_s=60.0)
        assert value_of(await pulled(client)) == 5
        await client.close()


async def test_nobody_is_told_of_initial_values_before_they_are_on_disk(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(56) as cluster:
        await start(cluster, tmp_path, loss_window_s=60.0)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), distribution="given")
        maker, other = await make_client(cluster, "a", "w"), await make_client(cluster, "a", "v")
        disk = threading.Event()
        write = LogStore.write

        def slow_write(store: LogStore, *arguments: Any) -> list[int]:
            assert disk.wait(20)
            return write(store, *arguments)

        monkeypatch.setattr(LogStore, "write", slow_write)
        giving = maker.start_push(push_of(layout, constant(layout, 5.0), kind="delta"))
        flat = np.zeros(layout.flat_size, np.float32)
        async with asyncio.timeout(20):
            while not flat.any():
                found = await other.pull(flat)
        assert not giving.done and not found.pushes.any()
        disk.set()
        await giving.wait(20)
        assert (await other.pull(flat)).pushes.all()
        await maker.close()
        await other.close()


async def test_a_group_that_finds_no_room_to_be_made_durable_is_not_told_as_durable_until_it_is(
    tmp_path: Path, monkeypatch
) -> None:
    async with memory_cluster(57) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        with monkeypatch.context() as patch:

            def no_space(store: LogStore) -> None:
                raise lmdb.DiskError("No space left on device")

            patch.setattr(LogStore, "_confirm", no_space)
            waiting = client.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            await until(lambda: context.status()["store"]["degraded"], "it says so")
            await asyncio.sleep(0.2)
            assert not waiting.done
        await waiting.wait(20)
        await until(lambda: not context.status()["store"]["degraded"], "there is room again")
        await add(client, layout)
        await crash(cluster, "ps-0", monkeypatch)
        await start(cluster, tmp_path)
        assert value_of(await pulled(client)) == 2
        await client.close()


async def test_values_that_a_failure_left_half_written_are_never_taken_up_again(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(58) as cluster:
        await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "a", layout)

        def half(rule: Add, current: np.ndarray, target: np.ndarray, *others: Any) -> None:
            target[: target.size // 2] = 77
            raise MemoryError("as a test wants it")

        with monkeypatch.context() as patch:
            patch.setattr(Add, "apply_many", half)
            with pytest.raises(RemoteError, match="resume the run from its last checkpoint"):
                for _ in range(2):  # of the first one, parts may have been answered singly
                    await add(client, layout)
        with pytest.raises(RemoteError, match="resume the run from its last checkpoint"):
            await pulled(client)
        await cluster.stop("ps-0")
        await start(cluster, tmp_path)
        with pytest.raises(RemoteError, match="ps-0 was restarted"):
            await client.pull(np.zeros(layout.flat_size, np.float32), deadline_s=20)
        await client.close()

"""A server with a store: what it says, and does not, while the disk is slow, full, broken or not there."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from adamctl.errors import DamagedDataError, RemoteError, RunFailedError
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps import server
from adamctl.roles.ps.core.flush import FlushCore, Waiter
from adamctl.roles.ps.store.lmdb_log import LogStore, NoSpaceError
from adamctl.wire.constants import ErrorCode
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import add_job, constant, make_client, pulled, push_of, start_servers
from tests.roles.ps.store_cluster import add, crash, end, start, until, value_of, zeroed


async def test_without_space_it_goes_on_from_memory_acknowledges_nothing_as_durable_and_says_so(
    tmp_path: Path, monkeypatch
) -> None:
    async with memory_cluster(49) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=1.0)
        layout = await add_job(cluster, "fast", ["ps-0"], RuleConfig("add"))
        await add_job(cluster, "safe", ["ps-0"], RuleConfig("add"), acks="durable")
        fast, safe = await zeroed(cluster, "fast", layout), await make_client(cluster, "safe", "v")
        with monkeypatch.context() as patch:

            def no_space(*arguments: object) -> None:
                raise NoSpaceError("No space left on device")

            patch.setattr(LogStore, "write", no_space)
            await add(fast, layout)
            await until(lambda: context.status()["store"]["degraded"], "it says so")
            waiting = safe.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            await until(lambda: context.status()["store"]["loss_window_s"] > 1.0, "the loss window is used up")
            beyond = fast.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            await until(lambda: context.status()["store"]["pushes_held_back"] == 1, "it waits")
            await asyncio.sleep(0.3)
            assert not waiting.done and context.status()["store"]["pushes_waiting"] == 1
            assert not beyond.done and value_of(await pulled(fast)) == 2
        await waiting.wait(20)
        await beyond.wait(20)
        await until(lambda: not context.status()["store"]["degraded"], "there is room again")
        await fast.close()
        await safe.close()


async def test_what_a_full_disk_has_refused_is_freed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_collector: None
) -> None:
    """An error that keeps its frame would keep the whole group, until the garbage collector runs: hours."""
    async with memory_cluster(54) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=1.0)
        layout = await add_job(cluster, "fast", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "fast", layout)
        with monkeypatch.context() as patch:

            def no_space(*arguments: object) -> None:
                raise NoSpaceError("No space left on device")

            patch.setattr(LogStore, "write", no_space)
            await add(client, layout)
            await until(lambda: context.status()["store"]["degraded"], "it says so")
        await until(lambda: not context.status()["store"]["degraded"], "there is room again")
        # By `type`: `isinstance` would ask proxies, whose objects may be gone.
        assert not [one for one in gc.get_objects() if issubclass(type(one), NoSpaceError)]
        await client.close()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Nor records of the log, which the test's runner keeps with the errors that they tell of."""
    gc.collect()
    gc.disable()
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.enable()


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


async def test_a_wait_for_room_is_not_taken_for_the_speed_of_the_disk(tmp_path: Path, monkeypatch) -> None:
    """Else the loss window would be stretched long after there is room again."""
    async with memory_cluster(60) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        told: list[tuple[bool, float]] = []
        finished = FlushCore.finished

        def record(flush: FlushCore, sizes: list[int], seconds: float = 0.0) -> list[Waiter]:
            told.append((flush.full, seconds))
            return finished(flush, sizes, seconds)

        monkeypatch.setattr(FlushCore, "finished", record)
        with monkeypatch.context() as patch:

            def no_space(store: LogStore) -> None:
                raise lmdb.DiskError("No space left on device")

            patch.setattr(LogStore, "_confirm", no_space)
            waiting = client.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            await until(lambda: context.status()["store"]["degraded"], "it says so")
        await waiting.wait(20)
        await add(client, layout)
        assert {seconds for stalled, seconds in told if stalled} == {0.0}
        assert all(seconds > 0 for stalled, seconds in told if not stalled)
        await client.close()


async def test_what_is_durable_after_a_full_disk_counts_after_a_crash(tmp_path: Path, monkeypatch) -> None:
    """The numbers of a group that found no room are given out anew, below where the next holding had begun to count."""
    async with memory_cluster(61) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=60.0)
        layout = await add_job(cluster, "other", ["ps-0"], RuleConfig("add"), acks="durable")
        other = await zeroed(cluster, "other", layout)
        disk, began, write = threading.Event(), threading.Event(), LogStore.write

        def no_space(store: LogStore, *arguments: Any) -> list[int]:
            began.set()
            assert disk.wait(20)
            raise NoSpaceError("No space left on device")

        monkeypatch.setattr(LogStore, "write", no_space)
        other.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
        assert await asyncio.to_thread(began.wait, 20)
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")  # its holding is for the next group
        await until(lambda: "a" in context.status()["jobs"], "it is made")
        await asyncio.sleep(0.5)
        await end(cluster, "other")  # so that nothing of that group is written any more
        await until(lambda: "other" not in context.status()["jobs"], "freed")
        disk.set()
        await until(lambda: context.status()["store"]["degraded"], "it says so")
        monkeypatch.setattr(LogStore, "write", write)
        client = await make_client(cluster, "a", "v", attempt_s=1.0)
        flat = constant(layout, 0.0)
        await client.pull(flat, deadline_s=20)
        await client.push(push_of(layout, 5 - flat, kind="delta"), deadline_s=20)
        await crash(cluster, "ps-0", monkeypatch)
        await start(cluster, tmp_path, loss_window_s=60.0)
        assert value_of(await pulled(client)) == 5
        await client.close()
        await other.close()

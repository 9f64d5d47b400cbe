"""A server with a store: what it takes up again after a restart, and for whom."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.records import job_key
from adamctl.errors import RemoteError, RunFailedError
from adamctl.kernels.rules.add import Add
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.service.controller_core import ControllerConfig
from adamctl.roles.ps.client.parameter_client import PushSet
from adamctl.roles.ps.jobs import copy_builder as jobs
from adamctl.roles.ps.jobs import keeper
from adamctl.roles.ps.jobs.keeper import JobKeeper
from adamctl.roles.ps.store.flusher import StoreWriter
from adamctl.roles.ps.store.record import JobIdentity
from adamctl.wire.messages import ConfigChanges
from tests.cluster import ClusterInMemory, memory_cluster
from tests.roles.manifests_for_tests import finish
from tests.roles.ps.ps_cluster import (
    add_job,
    checkpoint,
    constant,
    make_client,
    pulled,
    push_of,
    random_flat,
    start_servers,
)
from tests.roles.ps.store_cluster import add, crash, end, start, until, value_of, zeroed


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
        assert client.rollbacks.numbers == 4 * len(layout.shards)
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


async def test_a_server_that_was_given_up_before_it_looked_around_touches_nothing(tmp_path: Path, monkeypatch) -> None:
    """Without a node key of its own it cannot tell what was placed on the process before it."""
    async with memory_cluster(60, config=ControllerConfig(beacon_interval_s=0.5, lost_after_s=2.5)) as cluster:
        await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        await add(client, layout, 5.0)
        await cluster.stop("ps-0")
        read = keeper.read_record

        looked = 0

        async def given_up_first(*arguments: Any) -> Any:
            nonlocal looked
            if not looked:
                context = cluster.contexts["ps-0"]
                assert context._beacons is not None
                context._beacons.cancel()  # so that it is not told
                await cluster.client.leave("ps-0", context.incarnation, deadline_s=10)
            looked += 1
            return await read(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(keeper, "read_record", given_up_first)
            context = await start(cluster, tmp_path, loss_window_s=0.1)
            await until(lambda: looked > 1 or context.status()["jobs"], "looked around")
            assert not context.status()["jobs"]
            await cluster.stop("ps-0")
        await start(cluster, tmp_path)
        assert value_of(await pulled(client)) == 5
        await client.close()


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


async def test_a_server_killed_before_anything_of_a_job_is_on_disk_makes_its_buckets_anew(
    tmp_path: Path, monkeypatch
) -> None:
    """Nobody has been served: initial values are what the job is at."""
    async with memory_cluster(54) as cluster:
        holding = asyncio.Event()

        async def held_up(storing: StoreWriter, *arguments: Any) -> None:
            holding.set()
            await asyncio.sleep(60)

        with monkeypatch.context() as patch:
            patch.setattr(StoreWriter, "hold", held_up)
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


async def test_a_failure_that_leaves_values_half_written_ends_the_server_which_recovers_from_its_store(
    tmp_path: Path, monkeypatch
) -> None:
    """What is in memory is worth nothing then; what was acknowledged as durable is on disk."""
    async with memory_cluster(58) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        await add(client, layout, 5.0)

        def half(rule: Add, current: np.ndarray, target: np.ndarray, *others: Any) -> None:
            target[: target.size // 2] = 77
            raise MemoryError("as a test wants it")

        with monkeypatch.context() as patch:
            patch.setattr(Add, "is_compiled", False)  # or all shards would be applied in one call
            patch.setattr(Add, "apply_many", half)
            under_way = client.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            async with asyncio.timeout(20):
                await context.stopping.wait()
            assert isinstance(context.failure, RunFailedError) and "from its store" in str(context.failure)
            await cluster.stop("ps-0")
        await start(cluster, tmp_path)
        await under_way.wait(20)
        assert value_of(await pulled(client)) == 6
        await client.close()


async def test_a_job_that_ends_while_it_is_made_is_not_held(tmp_path: Path, monkeypatch) -> None:
    async with memory_cluster(59) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        reached, go_on, build = threading.Event(), threading.Event(), jobs.build_buckets
        told, held = asyncio.Event(), []
        tell, hold = JobKeeper.tell_served, StoreWriter.hold

        def held_up(*arguments: Any) -> Any:
            reached.set()
            assert go_on.wait(20)
            return build(*arguments)

        async def telling(self: JobKeeper, *arguments: Any) -> bool:
            told.set()
            return await tell(self, *arguments)

        async def holding(storing: StoreWriter, identity: JobIdentity, *arguments: Any) -> None:
            held.append(identity.name)
            await hold(storing, identity, *arguments)

        monkeypatch.setattr(jobs, "build_buckets", held_up)
        monkeypatch.setattr(JobKeeper, "tell_served", telling)
        monkeypatch.setattr(StoreWriter, "hold", holding)
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        assert await asyncio.to_thread(reached.wait, 20)
        await end(cluster, "a")
        await until(lambda: "a" not in context.status()["jobs"], "freed")
        go_on.set()
        async with asyncio.timeout(20):
            await told.wait()
        assert not held


async def test_the_checkpoint_that_a_job_began_from_may_be_gone_when_all_is_in_the_store(
    tmp_path: Path, monkeypatch
) -> None:
    """Old checkpoints are removed while a run goes on; also what nobody has pushed to since must be there."""
    saved = tmp_path / "checkpoint"
    async with memory_cluster(62) as cluster:
        context = await start(cluster, tmp_path / "store", loss_window_s=0.2)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await zeroed(cluster, "a", layout)
        await add(client, layout, 5.0)
        finish(saved, await checkpoint(cluster, "a", saved), layout.hash)
        await client.close()
        await end(cluster, "a")
        await add_job(cluster, "b", ["ps-0"], RuleConfig("add"), restore=str(saved))
        client = await make_client(cluster, "b", "v", attempt_s=1.0)
        push = PushSet(layout, 1.0)
        push.delta(0, np.ones(layout.tensors[0].shape, np.float32))
        await client.push(push)
        await until(lambda: context.status()["store"]["loss_window_bytes"] == 0, "saved")
        shutil.rmtree(saved)
        await crash(cluster, "ps-0", monkeypatch)
        await start(cluster, tmp_path / "store")
        first, *others = await pulled(client)
        assert value_of([first]) == 6 and value_of(others) == 5
        await client.close()


async def vanish(cluster: ClusterInMemory, job: str) -> None:
    """Takes all keys of a job away: so it looks when a controller begins with an empty folder."""
    _, entries = await cluster.client.read(job_key(job))
    await cluster.client.compare_and_set(ConfigChanges({}, {}, tuple(entry.key for entry in entries)))


async def test_a_job_that_vanishes_is_kept(tmp_path: Path, monkeypatch) -> None:
    """Only its end, or a long time, says that nobody needs it any more."""
    async with memory_cluster(63) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        await add(client, layout, 5.0)
        await client.close()
        live_bytes = context.status()["store"]["live_bytes"]
        await vanish(cluster, "a")
        await asyncio.sleep(0.5)
        assert context.status()["store"]["live_bytes"] == live_bytes
        await crash(cluster, "ps-0", monkeypatch)
        context = await start(cluster, tmp_path, loss_window_s=0.1)
        await asyncio.sleep(0.5)
        assert context.status()["store"]["live_bytes"] == live_bytes
        assert context.status()["store"]["jobs_not_served"] == {"a": live_bytes}


async def test_a_job_that_nobody_has_known_for_long_is_freed(tmp_path: Path) -> None:
    async with memory_cluster(64) as cluster:
        context = await start(cluster, tmp_path, loss_window_s=0.1, forget_after_s=1.0)
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"), acks="durable")
        client = await zeroed(cluster, "a", layout)
        await client.close()
        await asyncio.sleep(1.5)
        assert "a" in context.status()["jobs"]
        await vanish(cluster, "a")
        await until(lambda: not context.status()["jobs"] and not context.status()["store"]["log_bytes"], "freed")

"""Three servers keep copies of one job: equal bytes, takeovers without loss, learners, restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adamctl.config.records import DrainRecord, drain_key, encode, served_key
from adamctl.errors import RemoteError
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.ps.core.buffers import Values
from adamctl.roles.ps.core.instructions import Build
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.initial_values import bytes_needed
from adamctl.roles.ps.jobs.copy_builder import Copies
from adamctl.roles.ps.memory_budget import MemoryAccount
from adamctl.roles.ps.replication.core.bucket_group import ReplicaGroup, ShardReplica
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointRequest, ConfigChanges
from tests.garbage import collected
from tests.roles.ps.ps_cluster import checkpoint, constant, make_client, make_layout, pulled, push_of, random_flat
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.replication.copies import THREE, add, replicated, values_of, zeroed
from tests.roles.ps.store_cluster import crash


async def test_whoever_holds_a_bucket_from_its_beginning_has_said_so() -> None:
    """Any of them may serve it next; then the job must not begin again if all are lost (`JobView.never_served`)."""
    async with replicated(69) as world:
        await world.add_job(THREE, RuleConfig("add"))
        client = await make_client(world.cluster, "a", "w")
        await client.push(push_of(client.layout, constant(client.layout, 1.0), kind="delta"), deadline_s=60)
        _, entries = await world.cluster.client.read(served_key("a", ""))
        assert {entry.key for entry in entries} == {served_key("a", name) for name in THREE}
        await client.close()


async def test_what_is_served_is_recorded_once_for_all_buckets_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch that tells of it comes later than the next bucket."""
    told, change = [], ControllerClient.compare_and_set

    async def counted(client: ControllerClient, changes: ConfigChanges, **options: Any) -> Any:
        told.extend(key for key in changes.puts if "/served/" in key)
        return await change(client, changes, **options)

    monkeypatch.setattr(ControllerClient, "compare_and_set", counted)
    async with replicated(68, "ps-0") as world:
        await world.add_job(["ps-0"], RuleConfig("add"), copies=1, min_in_sync=1)
        client = await make_client(world.cluster, "a", "w")
        assert len(client.layout.buckets) > 1 and told == [served_key("a", "ps-0")]
        await client.close()


@pytest.mark.parametrize("rule", ["add", "adam"])
async def test_copies_are_equal_at_a_quiet_point(rule: str) -> None:
    async with replicated(70) as world:
        await world.add_job(THREE, RuleConfig(rule))
        client = await make_client(world.cluster, "a", "w")
        kind = "delta" if rule == "add" else "gradient"
        for number in range(5):
            await client.push(push_of(client.layout, random_flat(client.layout, number), 0.1, kind), deadline_s=60)
        await world.until_equal()
        assert all(set(record.in_sync) == set(THREE) for record in (await world.records()).values())
        await client.close()


async def test_another_takes_over_and_nothing_acknowledged_is_lost() -> None:
    async with replicated(71) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        for _ in range(3):
            await add(client)
        await world.kill("ps-1")
        for _ in range(3):
            await add(client)
        assert values_of(await pulled(client)) == {6.0}
        records = await world.until_records(lambda r: "ps-1" not in (r.primary, *r.in_sync), "without the dead one")
        assert {record.primary for record in records.values()} == {"ps-0", "ps-2"}
        await world.until_equal(2)
        await client.close()


async def test_a_new_server_learns_and_is_then_in_sync() -> None:
    async with replicated(72, "ps-0", "ps-1") as world:
        await world.add_job(("ps-0", "ps-1"), copies=2, min_in_sync=1)
        client = await zeroed(world)
        await add(client)
        await world.kill("ps-1")
        await add(client)
        await world.start("ps-3")
        await add(client)
        await world.until_records(lambda r: set(r.in_sync) == {"ps-0", "ps-3"} and not r.learners, "in sync")
        await add(client)
        await world.until_equal(2)
        assert values_of(await pulled(client)) == {4.0}
        await client.close()


async def test_a_server_that_is_started_again_learns_too() -> None:
    async with replicated(73) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        await add(client)
        await world.kill("ps-2")
        await world.start("ps-2")
        await add(client)
        await world.until_records(lambda r: set(r.in_sync) == set(THREE) and not r.learners, "in sync again")
        await world.until_equal()
        assert values_of(await pulled(client)) == {2.0}
        assert world.cluster.contexts["ps-1"].status()["jobs"]["a"]["acks"] == "replicated"
        await client.close()


async def test_a_secondary_writes_what_it_holds_to_its_log(tmp_path: Path) -> None:
    async with replicated(76, store=str(tmp_path)) as world:
        await world.add_job(THREE, acks="durable")
        client = await zeroed(world)
        await add(client)
        assert all(world.cluster.contexts[name].status()["store"]["records"] > 0 for name in THREE)
        shards = len(world.layout.shards)
        for name in THREE:
            flush = world.servers[name].core.flush
            assert flush is not None
            held = [copy for bucket in world.layout.buckets if (copy := world.copy(name, bucket.index)) is not None]
            assert held
            entries = [shard.entry for copy in held for shard in copy.shards.values()]
            assert len(entries) < shards and all(entry is not None and entry.sequence for entry in entries)
        await client.close()


async def test_when_all_are_lost_what_was_durable_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicated(77, store=str(tmp_path)) as world:
        await world.add_job(THREE, acks="durable")
        client = await zeroed(world)
        for _ in range(3):
            await add(client)
        for name in THREE:
            del world.servers[name]
            await crash(world.cluster, name, monkeypatch)
        await world.start(*THREE, store=str(tmp_path))
        await add(client)
        assert values_of(await pulled(client)) == {4.0}
        await world.until_equal()
        await world.kill("ps-0")
        await add(client)
        assert values_of(await pulled(client)) == {5.0}
        await client.close()


async def test_what_the_store_has_is_freed_when_a_bucket_comes_back_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicated(78, store=str(tmp_path)) as world:
        await world.add_job(THREE, acks="durable")
        client = await zeroed(world)
        await add(client)
        del world.servers["ps-2"]
        await crash(world.cluster, "ps-2", monkeypatch)
        await add(client)
        await world.start("ps-2", store=str(tmp_path))
        await world.until_records(lambda r: set(r.in_sync) == set(THREE) and not r.learners, "in sync again")
        await add(client)
        await world.until_equal()
        assert not world.servers["ps-2"]._storing.holdings.found  # type: ignore[union-attr]
        assert values_of(await pulled(client)) == {3.0}
        await client.close()


async def test_a_checkpoint_is_written_by_primaries_alone(tmp_path: Path) -> None:
    async with replicated(79) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        await add(client)
        files = await checkpoint(world.cluster, "a", tmp_path)
        assert sorted(shard for file in files for shard in file.shards) == list(range(len(world.layout.shards)))
        await client.close()


async def test_a_copy_that_does_not_fit_is_refused_and_the_others_go_on() -> None:
    async with replicated(80, "ps-0", "ps-1") as world:
        await world.add_job(("ps-0", "ps-1"), copies=2, min_in_sync=1, shapes=((200, 100), (200,)))
        client = await zeroed(world)
        await world.kill("ps-1")
        await world.start("ps-3", memory="20KB")
        await add(client)
        held = world.servers["ps-3"]._keeper.memory
        for _ in range(50):
            assert held.held_bytes <= held.bytes_max
            await asyncio.sleep(0.02)
        assert values_of(await pulled(client)) == {1.0}
        await client.close()


def test_copies_that_are_about_to_be_made_have_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs that begin at once are not both told that there is room for one."""
    layout, rule = make_layout(), make_rule(RuleConfig("add"))
    buckets = [bucket.index for bucket in layout.buckets]
    needed_bytes = bytes_needed(layout, buckets, rule)
    jobs = {name: SimpleNamespace(name=name, layout=layout, rule=rule, failed=None) for name in ("a", "b")}
    failed: list[tuple[str, int]] = []
    keeper = SimpleNamespace(
        memory=MemoryAccount("ps-0", needed_bytes * 3 // 2, lambda: 0),
        view=lambda name: SimpleNamespace(),
        fail=lambda job, code, why: failed.append((job.name, code)),
    )
    spawned: list[Any] = []
    parts: list[Any] = [SimpleNamespace(node="ps-0", log=None), SimpleNamespace(jobs=jobs), None, keeper, None]
    copies = Copies(*parts, carry_out=lambda instructions: None, spawn=spawned.append)
    monkeypatch.setattr(Copies, "_build", lambda *arguments: None)
    copies.build(Build("a", buckets))
    copies.build(Build("b", buckets))
    assert failed == [("b", ErrorCode.OVER_QUOTA)] and len(spawned) == 1
    for one in spawned:
        one.close()


async def drain(world: ReplicatedCluster, node: str) -> None:
    record = encode(DrainRecord(world.cluster.contexts[node].incarnation, 0.0))
    await world.cluster.client.compare_and_set(ConfigChanges({}, {drain_key(node): record}))


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_server_is_emptied_while_pushes_go_on(copies: int) -> None:
    async with replicated(81) as world:
        await world.add_job(
            ("ps-0", "ps-1"), copies=copies, acks="replicated" if copies > 1 else "applied", min_in_sync=1
        )
        client = await zeroed(world)
        await add(client)
        await drain(world, "ps-0")
        pushes = 2
        while any("ps-0" in (r.primary, *r.in_sync) for r in (await world.records()).values()):
            await add(client)
            pushes += 1
        await add(client)
        await world.until_equal(copies)
        assert values_of(await pulled(client)) == {float(pushes)}
        replicating = world.servers["ps-0"]._keeper.replicating
        assert replicating is not None and not replicating.core.copies("a")
        assert not world.servers["ps-0"].core.jobs["a"].buckets
        await client.close()


async def test_broken_connections_leave_no_circles_in_servers_clients_and_controllers() -> None:
    """Of a fault every half minute a few hundred objects each would be much after weeks."""
    async with replicated(83) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        with collected() as found:
            for _ in range(3):
                world.cluster.network.crash("w")
                world.cluster.network.crash("test-0")
                await world.records()
                await add(client)
        ours = [one for one in found if type(one).__module__.startswith("adamctl") or isinstance(one, BaseException)]
        assert not ours, Counter(type(one).__name__ for one in ours).most_common(5)
        await client.close()


async def test_buckets_that_were_handed_over_are_freed_at_once() -> None:
    async with replicated(82) as world:
        await world.add_job(("ps-0", "ps-1"), copies=2, min_in_sync=1)
        client = await zeroed(world)
        with collected() as found:
            await add(client)
            await drain(world, "ps-0")
            await world.until_records(lambda record: "ps-0" not in (record.primary, *record.in_sync), "handed over")
            await add(client)
        kinds = (Shard, Values, HeldShard, ReplicaGroup, ShardReplica)
        assert not [one for one in found if isinstance(one, kinds)]
        await client.close()


@pytest.mark.parametrize("looks", [0, 1], ids=["before", "meanwhile"])
async def test_no_checkpoint_is_written_of_what_others_may_serve_by_now(tmp_path: Path, looks: int) -> None:
    """Without a lease what is read here may be older than what has been acknowledged elsewhere."""
    async with replicated(82, *THREE[:2]) as world:
        await world.add_job(THREE[:2], copies=2, min_in_sync=1)
        client = await zeroed(world)
        held = iter([True] * looks)
        core = world.servers["ps-0"].core
        lease_holds, core.lease_holds = core.lease_holds, lambda: next(held, False)
        connection = await (await world.cluster.context("coordinator", "c-0")).connect("ps-0", deadline_s=10)
        with pytest.raises(RemoteError) as caught:
            await connection.request(CheckpointRequest("a", str(tmp_path)), deadline_s=10)
        assert caught.value.code == ErrorCode.NOT_READY and "lease" in str(caught.value)
        core.lease_holds = lease_holds
        await connection.request(CheckpointRequest("a", str(tmp_path)), deadline_s=10)
        await connection.close()
        await client.close()


async def test_status_says_who_holds_what() -> None:
    async with replicated(75) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        await add(client)
        await world.until_equal()
        statuses = [world.cluster.contexts[name].status() for name in THREE]
        whole_bytes = sum(one["bytes"] for one in statuses)
        assert [one["held_bytes"] for one in statuses] == [whole_bytes] * 3, "copies need memory, too"
        found = [one["replication"] for one in statuses]
        assert all(one["records"] > 0 and one["bytes"] > 0 and one["records_kept"] > 0 for one in found)
        jobs = [one["jobs"]["a"] for one in found]
        buckets = len(world.layout.buckets)
        assert sum(job["primary"] for job in jobs) == buckets
        assert sum(job["secondary"] for job in jobs) == sum(job["members_in_sync"] for job in jobs) == 2 * buckets
        assert not any(job["learner"] or job["shards_waiting"] or job["members_learning"] for job in jobs)
        await client.close()

"""Clients against real servers over the in-memory network: push, pull, exactly once, never torn, several jobs."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import numpy as np
import pytest

from adamctl.config.names import is_name
from adamctl.config.records import BucketRecord, DrainRecord, JobRecord, bucket_key, decode, drain_key, encode, job_key
from adamctl.errors import BackpressureError, DeadlineError, RemoteError, UnreachableError
from adamctl.model.initial import initial_rows
from adamctl.model.rule import RuleConfig
from adamctl.net.testing.faults import LinkFaults
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.ps import server
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges
from tests.cluster import ClusterInMemory, memory_cluster
from tests.roles.ps.ps_cluster import (
    TWO,
    add_job,
    constant,
    make_client,
    pulled,
    push_of,
    random_flat,
    read_while,
    start_servers,
    sums_on_a_bad_network,
    views,
)


async def test_the_first_pull_gives_the_initial_values_wherever_shards_live() -> None:
    async with memory_cluster(1) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("sgd"), seed=5)
        client = await make_client(cluster, "a", "w")
        found = await pulled(client)
        for index, (tensor, values) in enumerate(zip(layout.tensors, found, strict=True)):
            expected = initial_rows(tensor, index, 0, tensor.shape[0], 5).reshape(tensor.shape)
            np.testing.assert_array_equal(values, expected)
        assert set(client.servers) == set(TWO)
        await client.close()


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad"])
async def test_rules_over_many_steps_as_numpy_computes_them(rule: str) -> None:
    async with memory_cluster(2) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig(rule, weight_decay=0.01))
        client = await make_client(cluster, "a", "w")
        flat = np.zeros(layout.flat_size, np.float32)
        await client.pull(flat)
        weights, state = flat.astype(np.float64), np.zeros(layout.flat_size)
        for step in range(1, 21):
            gradient, lr = random_flat(layout, step), 0.1 / step
            outcome = await client.push(push_of(layout, gradient, lr))
            assert not outcome.refused and outcome.updates == layout.parameter_count
            weights *= 1 - lr * 0.01
            if rule == "sgd":
                weights -= lr * gradient
            elif rule == "momentum":
                state = 0.9 * state + gradient
                weights -= lr * state
            else:
                state += gradient.astype(np.float64) ** 2
                weights -= lr * gradient / np.sqrt(state)
        for found, expected in zip(await pulled(client), views(layout, weights), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        await client.close()


async def test_factors_and_gradients_lead_to_the_same_weights_on_any_number_of_servers() -> None:
    async with memory_cluster(3) as cluster:
        await start_servers(cluster, "ps-0", "ps-1", "ps-2")
        await add_job(cluster, "gradients", TWO, RuleConfig("adagrad"))
        layout = await add_job(cluster, "factors", ("ps-0", "ps-1", "ps-2"), RuleConfig("adagrad"))
        by_gradient = await make_client(cluster, "gradients", "v")
        by_factors = await make_client(cluster, "factors", "w")
        generator = np.random.default_rng(3)
        for _ in range(5):
            push, same = PushSet(by_gradient.layout, 0.1), PushSet(layout, 0.1)
            for index, tensor in enumerate(layout.tensors):
                errors = generator.standard_normal((7, tensor.shape[0])).astype(np.float32)
                if len(tensor.shape) == 2:
                    activations = generator.standard_normal((7, tensor.row_size)).astype(np.float32)
                    push.gradient(index, np.ascontiguousarray(errors.T @ activations))
                    same.factors(index, errors, activations)
                else:
                    push.gradient(index, errors.sum(0))
                    same.gradient(index, errors.sum(0))
            outcomes = await asyncio.gather(by_gradient.push(push), by_factors.push(same))
            assert [outcome.refused for outcome in outcomes] == [(), ()]
            dense = sum(tensor.size for tensor in layout.tensors if len(tensor.shape) == 2)
            assert outcomes[1].updates == 7 * dense + layout.parameter_count - dense
        for one, other in zip(await pulled(by_gradient), await pulled(by_factors), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        await by_gradient.close()
        await by_factors.close()


async def test_values_that_are_not_finite_are_refused_shard_by_shard() -> None:
    async with memory_cluster(4) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("sgd"))
        client = await make_client(cluster, "a", "w")
        before = await pulled(client)
        flat = constant(layout, 1.0)
        bad = layout.shards[4]
        flat[bad.offset] = np.nan
        outcome = await client.push(push_of(layout, flat))
        assert [(part.shard, part.code) for part in outcome.refused] == [(4, ErrorCode.NOT_FINITE)]
        assert outcome.updates == layout.parameter_count - bad.size
        outcome = await client.push(push_of(layout, constant(layout, 1.0)))
        assert not outcome.refused  # the refused number is spent, the next one counts on
        after = await pulled(client)
        assert {float(round(x)) for b, a in zip(before, after, strict=True) for x in (b - a).flat} == {1.0, 2.0}
        await client.close()


async def test_wrong_kinds_are_refused_and_said_so() -> None:
    async with memory_cluster(5) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w")
        outcome = await client.push(push_of(layout, constant(layout, 1.0)))
        assert {part.code for part in outcome.refused} == {ErrorCode.WRONG_KIND}
        assert "DELTA" in outcome.refused[0].message
        await client.close()


async def test_two_jobs_at_once_do_not_touch_each_other_and_an_ended_one_is_freed() -> None:
    async with memory_cluster(6) as cluster:
        contexts = await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("add"), seed=1)
        await add_job(cluster, "b", TWO, RuleConfig("sgd"), shapes=((30, 4), (30,)), seed=2)
        a, b = await make_client(cluster, "a", "v"), await make_client(cluster, "b", "w")
        before_a, before_b = await pulled(a), await pulled(b)
        for number in range(5):
            delta, gradient = constant(layout, 2.0), random_flat(b.layout, number)
            await asyncio.gather(a.push(push_of(layout, delta, kind="delta")), b.push(push_of(b.layout, gradient)))
        for found, start in zip(await pulled(a), before_a, strict=True):
            np.testing.assert_allclose(found, start + 10.0, rtol=1e-5)
        assert not np.allclose((await pulled(b))[0], before_b[0])
        _, entries = await cluster.client.read(job_key("a"))
        (made,) = (decode(entry.value, JobRecord) for entry in entries if entry.key == job_key("a"))
        ended = encode(msgspec.structs.replace(made, state="ended"))
        await cluster.client.compare_and_set(ConfigChanges({}, {job_key("a"): ended}))
        async with asyncio.timeout(60):
            while any("a" in context.status()["jobs"] for context in contexts):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        status = contexts[0].status()
        assert set(status["jobs"]) == {"b"} and status["jobs"]["b"]["pushes"] == 5
        await pulled(b)
        await a.close()
        await b.close()


async def test_a_pull_says_which_pushes_it_contains_shard_by_shard() -> None:
    async with memory_cluster(7) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("add"))
        mine, other = await make_client(cluster, "a", "v"), await make_client(cluster, "a", "w")
        first = mine.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
        some = PushSet(layout, 1.0)
        some.delta(1, np.ones(layout.tensors[1].shape, np.float32))
        second = mine.start_push(some)
        assert first.number == 1 and set(first.sequences) == {1}
        assert set(second.sequences) == {0, 2}
        await first
        await second.wait(20)
        await other.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        flat = np.zeros(layout.flat_size, np.float32)
        all_of_it = await mine.pull(flat)
        assert not first.lacking(all_of_it).any() and not second.lacking(all_of_it).any()
        touched = second.sequences > 0
        np.testing.assert_array_equal(all_of_it.sequences, np.where(touched, 2, 1))
        np.testing.assert_array_equal(all_of_it.pushes, np.where(touched, 3, 2))
        stale = PushSet(layout, 1.0, base=(await other.pull(flat)).base)
        await mine.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        for index, values in enumerate(views(layout, constant(layout, 1.0))):
            stale.delta(index, values)
        assert set((await other.push(stale)).staleness) == {1}
        third = mine.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
        assert third.lacking(all_of_it).all()
        await third
        await mine.close()
        await other.close()


async def test_some_shards_can_be_pulled_alone() -> None:
    async with memory_cluster(8) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("add"), seed=9)
        client = await make_client(cluster, "a", "w")
        whole, part = constant(layout, 0.0), constant(layout, 77.0)
        await client.pull(whole)
        chosen = [1, 2, 5]
        found = await client.pull(part, shards=chosen)
        assert found.shards.tolist() == chosen
        for shard in layout.shards:
            piece = slice(shard.offset, shard.offset + shard.size)
            expected = whole[piece] if shard.index in chosen else 77.0
            np.testing.assert_array_equal(part[piece], expected)
        with pytest.raises(ValueError, match="float32 vector"):
            await client.pull(np.zeros(3, np.float32))
        await client.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_push_happens_exactly_once_on_a_network_that_loses_and_repeats(seed: int) -> None:
    """Integer deltas under 30% loss, 50% duplicates and reordering: the sum is the checksum (I5)."""

    run_virtual(sums_on_a_bad_network(seed))


async def test_pulled_shards_are_never_torn() -> None:
    """Writers fill shards with constants while readers pull: every pulled shard is constant."""
    async with memory_cluster(9) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("add"), shapes=((64, 3000), (64,)))
        writer = await make_client(cluster, "a", "writer")
        flat = constant(layout, 0.0)
        await writer.pull(flat)
        await writer.push(push_of(layout, -flat, kind="delta"))  # now everything is zero
        readers = [await make_client(cluster, "a", f"reader{n}") for n in range(2)]

        async def write() -> None:
            for _ in range(40):
                await writer.push(push_of(layout, constant(layout, 1.0), kind="delta"))

        assert len(await read_while(write(), readers)) > 5
        for client in (writer, *readers):
            await client.close()


async def test_a_bucket_that_moves_is_found_again() -> None:
    async with memory_cluster(10) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", ["ps-0", "ps-1"], RuleConfig("add"), seed=4)
        client = await make_client(cluster, "a", "w")
        key = bucket_key("a", 0)
        _, (entry,) = await cluster.client.read(key)
        old = decode(entry.value, BucketRecord)
        drained = encode(DrainRecord(cluster.contexts[old.primary].incarnation, 0.0))
        await cluster.client.compare_and_set(ConfigChanges({}, {drain_key(old.primary): drained}))
        async with asyncio.timeout(20):
            while old.primary == decode((await cluster.client.read(key))[1][0].value, BucketRecord).primary:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        outcome = await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        assert not outcome.refused and client.routing.epochs[0] > old.epoch
        flat = constant(layout, 0.0)
        pulled_now = await client.pull(flat, deadline_s=20)
        assert pulled_now.epochs[0] > old.epoch
        await client.close()


async def test_a_server_that_comes_back_is_attached_to_again() -> None:
    async with memory_cluster(11) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        client = await make_client(cluster, "a", "w", attempt_s=1.0)
        before = await pulled(client)
        await client.channel("ps-0").drop()
        await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=20)
        np.testing.assert_allclose((await pulled(client))[0], before[0] + 1.0, rtol=1e-6)
        await client.close()


async def test_a_client_that_takes_up_an_old_identity_counts_on_from_what_servers_remember() -> None:
    async with memory_cluster(12) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("add"))
        first = await make_client(cluster, "a", "w")
        before = await pulled(first)
        for _ in range(3):
            await first.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        await first.close()
        context = cluster.contexts["w"]
        second = ParameterClient.from_context(context, "a")
        await second.attach(deadline_s=20)
        assert set(second.issued.tolist()) == {3}
        await second.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        np.testing.assert_allclose((await pulled(second))[0], before[0] + 4.0, rtol=1e-6)
        await second.close()


async def test_what_a_session_gave_up_takes_no_number_of_the_next_one() -> None:
    """A process begins anew while a push of before is under way: both are applied, and none is taken for the other."""
    async with memory_cluster(15) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        first = await make_client(cluster, "a", "w")
        before = await pulled(first)
        cluster.network.set_faults(LinkFaults(0.5, 0.5), "w", "ps-0")
        first.start_push(push_of(layout, constant(layout, 100.0), kind="delta"))
        await asyncio.sleep(0.1)
        cluster.network.set_faults(LinkFaults(), "w", "ps-0")
        second = ParameterClient.from_context(cluster.contexts["w"], "a", session=1)
        await second.attach(deadline_s=20)
        await second.push(push_of(layout, constant(layout, 1.0), kind="delta"))
        await asyncio.sleep(1.0)
        np.testing.assert_allclose((await pulled(second))[0], before[0] + 101.0, rtol=1e-6)
        await first.close()
        await second.close()


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_waiting_for_a_job_is_said_after_two_seconds_and_ends_with_the_deadline() -> None:
    async def scenario() -> None:
        async with memory_cluster(13) as cluster:
            context = await cluster.context("worker", "w")
            said: list[str] = []
            client = ParameterClient.from_context(context, "nowhere", notice=said.append)
            with pytest.raises(RemoteError, match="no job 'nowhere'"):
                await client.attach(deadline_s=8)
            assert len(said) == 1 and "nowhere" in said[0]
            await client.close()

    run_virtual(scenario())


def test_a_dead_server_is_named_when_a_deadline_passes() -> None:
    async def scenario() -> None:
        async with memory_cluster(14) as cluster:
            await cluster.start("ps", "ps-0", server.run, {"apply_threads": "0"})
            layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
            client = await make_client(cluster, "a", "w", attempt_s=1.0, pushes_max=3)
            await cluster.kill("ps-0")
            with pytest.raises(DeadlineError, match="ps-0"):
                await client.pull(np.zeros(layout.flat_size, np.float32), deadline_s=5)
            with pytest.raises(DeadlineError, match="push 1"):
                await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=5)
            for _ in range(2):
                client.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            with pytest.raises(BackpressureError, match="ps-0"):
                client.start_push(push_of(layout, constant(layout, 1.0), kind="delta"))
            await client.close()

    run_virtual(scenario())


async def test_another_layout_is_refused_at_once(cluster_of_one: ClusterInMemory) -> None:
    client = await make_client(cluster_of_one, "a", "w")
    await client.channel("ps-0").drop()
    record = msgspec.structs.replace(client.routing.record, layout_hash="other")
    client._session.routing = dataclasses.replace(client.routing, record=record)
    with pytest.raises(RemoteError) as caught:
        await client.channel("ps-0").connected()
    assert caught.value.code == ErrorCode.LAYOUT_MISMATCH
    await client.close()


@pytest.fixture
async def cluster_of_one():
    async with memory_cluster(15) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, "a", ["ps-0"], RuleConfig("add"))
        yield cluster


@pytest.mark.parametrize("name", ["worker-1", "x" * 128])
@pytest.mark.parametrize("sessions", [0, 1])
@pytest.mark.parametrize("part", [None, 2])
async def test_every_client_of_a_worker_bears_a_name_that_servers_take(
    name: str, sessions: int, part: int | None
) -> None:
    """A later run of a worker, or a part of a step, would else be refused by every server that it asks."""
    async with memory_cluster(91) as cluster:
        context = await cluster.context("worker", name)
        client = ParameterClient.from_context(context, "a", session=sessions)
        hello = (client if part is None else client.sibling(part))._session.hello()
        assert is_name(hello.node) and (hello.node == name) == (not sessions and part is None)


@pytest.mark.parametrize("begun", [False, True])
async def test_who_waits_for_a_push_is_told_when_its_client_is_closed(
    cluster_of_one: ClusterInMemory, begun: bool
) -> None:
    """Also at once, before anything of the push was sent."""
    client = await make_client(cluster_of_one, "a", "w")
    pending = client.start_push(push_of(client.layout, constant(client.layout, 1.0)))
    if begun:
        await asyncio.sleep(0)
    await client.close()
    assert pending.done
    with pytest.raises(UnreachableError, match="push 1 was abandoned: the client was closed"):
        await pending.wait(0.0)

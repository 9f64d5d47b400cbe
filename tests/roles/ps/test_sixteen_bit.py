"""Clients that push and pull 16 bits, against real servers: what arrives, exactly once, never torn; hostile peers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from adamctl.errors import ProtocolError, RemoteError
from adamctl.kernels.numeric import convert
from adamctl.kernels.numeric.feedback import round_with_feedback
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.model.wire_types import WireType
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.roles.ps.client.pull import Puller
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Hello, PulledPart, PullReply
from tests.cluster import memory_cluster
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
from tests.roles.ps.sixteen_bits import SIXTEEN, narrowed, widened
from tests.roles.ps.test_sockets import serving


@pytest.mark.parametrize("wire", SIXTEEN)
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
async def test_pushes_are_applied_as_rounded_with_feedback(rule: str, wire: str) -> None:
    """To the bit what the rule does with the rounded gradients; their sum is that of the float32 ones."""
    async with memory_cluster(2) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig(rule))
        client = await make_client(cluster, "a", "w", wire_push=wire)
        flat = np.zeros(layout.flat_size, np.float32)
        await client.pull(flat)
        used = make_rule(RuleConfig(rule))
        tensors = [values.reshape(-1).copy() for values in views(layout, flat)]
        states = [used.initial_state(values.size) for values in tensors]
        residuals = [np.zeros(values.size, np.float32) for values in tensors]
        given = [np.zeros(values.size) for values in tensors]
        sent = [np.zeros(values.size) for values in tensors]
        for step in range(1, 15):
            gradient = random_flat(layout, step)
            outcome = await client.push(push_of(layout, gradient, 0.1))
            assert not outcome.refused and outcome.updates == layout.parameter_count
            for number, values in enumerate(views(layout, gradient)):
                narrow = np.empty(values.size, convert.NARROW[wire])
                round_with_feedback(np.ascontiguousarray(values).reshape(-1), residuals[number], narrow)
                used.apply(tensors[number], tensors[number], states[number], widened(narrow), 0.1)
                given[number] += values.reshape(-1)
                sent[number] += widened(narrow)
        for found, expected in zip(await pulled(client), tensors, strict=True):
            np.testing.assert_array_equal(found.reshape(-1), expected)
        for one, other in zip(given, sent, strict=True):
            np.testing.assert_allclose(other, one, atol=5 * 2.0**-8)
        await client.close()


async def test_a_push_that_cannot_be_rounded_leaves_no_gap_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    async with memory_cluster(2) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("sgd"))
        client = await make_client(cluster, "a", "w", wire_push="bfloat16")
        push = push_of(layout, constant(layout, 1.0), 0.1)
        with monkeypatch.context() as patch:
            patch.setattr(client.wire, "start", full)
            with pytest.raises(MemoryError):
                client.start_push(push)
        assert not client.issued.any()
        outcome = await client.push(push, deadline_s=5)
        assert not outcome.refused and outcome.updates == layout.parameter_count
        await client.close()


@pytest.mark.parametrize("wire", SIXTEEN)
async def test_a_pull_is_the_servers_values_rounded(wire: str) -> None:
    async with memory_cluster(3) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("sgd"), shapes=((300, 2000), (300,), (7, 11)))
        client = await make_client(cluster, "a", "w", wire_pull=wire)
        exact, rounded, part = (constant(layout, 77.0) for _ in range(3))
        first = await client.pull(exact, exact=True)
        second = await client.pull(rounded)
        some = [0, layout.shards[-1].index]
        await client.pull(part, shards=some)
        np.testing.assert_array_equal(first.versions, second.versions)
        for shard in layout.shards:
            piece = slice(shard.offset, shard.offset + shard.size)
            np.testing.assert_array_equal(rounded[piece], widened(narrowed(exact[piece], wire)))
            np.testing.assert_array_equal(part[piece], rounded[piece] if shard.index in some else 77.0)
        assert (rounded != exact).any()
        await client.close()


async def test_factors_of_16_bits_lead_near_the_same_weights_on_any_number_of_servers() -> None:
    generator = np.random.default_rng(6)
    async with memory_cluster(5) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "plain", TWO, RuleConfig("sgd"))
        await add_job(cluster, "narrow", TWO, RuleConfig("sgd"))
        plain = await make_client(cluster, "plain", "w1")
        narrow = await make_client(cluster, "narrow", "w2", wire_push="bfloat16")
        for _ in range(20):
            push = PushSet(layout, 0.1)
            for index, tensor in enumerate(layout.tensors):
                if len(tensor.shape) == 2:
                    shape = tensor.shape[0], tensor.row_size
                    push.factors(index, *(generator.standard_normal((8, n)).astype(np.float32) / 3 for n in shape))
            for client in (plain, narrow):
                assert not (await client.push(push)).refused
        for one, other in zip(await pulled(plain), await pulled(narrow), strict=True):
            # 160 products, each off by up to 2 * 2^-9 of its size 1/9, with random signs
            np.testing.assert_allclose(one, other, atol=0.1 * 160**0.5 * 4 * 2.0**-8 / 9)
        for client in (plain, narrow):
            await client.close()


@pytest.mark.parametrize("wire", SIXTEEN)
async def test_one_bad_shard_is_refused_and_the_next_push_goes_on(wire: str) -> None:
    async with memory_cluster(4) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("sgd"))
        client = await make_client(cluster, "a", "w", wire_push=wire)
        before = await pulled(client)
        flat = constant(layout, 1.0)
        flat[layout.shards[4].offset] = np.nan
        outcome = await client.push(push_of(layout, flat))
        assert [(part.shard, part.code) for part in outcome.refused] == [(4, ErrorCode.NOT_FINITE)]
        assert not (await client.push(push_of(layout, constant(layout, 1.0)))).refused
        after = await pulled(client)
        assert {float(round(x)) for b, a in zip(before, after, strict=True) for x in (b - a).flat} == {1.0, 2.0}
        await client.close()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wire", SIXTEEN)
def test_every_push_happens_exactly_once_on_a_network_that_loses_and_repeats(wire: WireType, seed: int) -> None:
    """Integer deltas that 16 bits hold exactly: the sum is the checksum (I5), as with float32."""

    run_virtual(sums_on_a_bad_network(seed, wire_push=wire, wire_pull=wire))


async def test_pulled_shards_are_never_torn() -> None:
    """A writer fills shards with integers while readers pull them rounded: every pulled shard is one integer."""
    async with memory_cluster(9) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, "a", TWO, RuleConfig("add"), shapes=((64, 6000), (64,)))
        writer = await make_client(cluster, "a", "writer", wire_push="bfloat16")
        flat = constant(layout, 0.0)
        await writer.pull(flat)
        await writer.start_push(push_of(layout, -flat, kind="delta"), exact=True)  # now everything is zero
        readers = [await make_client(cluster, "a", f"reader{n}", wire_pull=SIXTEEN[n]) for n in range(2)]

        async def write() -> None:
            for _ in range(40):
                await writer.push(push_of(layout, constant(layout, 1.0), kind="delta"))

        assert len(await read_while(write(), readers)) > 5
        for client in (writer, *readers):
            await client.close()


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ([(0, 0, 7)], bytes(14)),  # another size than the shard's
        ([(0, 2, 0)], b""),
        ([(0, 2, -1)], bytes(16)),
        ([(0, 0, -1)], bytes(3)),
        ([(0, 0, -1)], b""),
    ],
)
async def test_values_that_are_not_those_of_the_shard_are_refused(
    parts: list[tuple[int, int, int]], body: bytes
) -> None:
    async with memory_cluster(8) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("sgd"))
        client = await make_client(cluster, "a", "w", wire_pull="bfloat16")
        into = constant(layout, 5.0)
        reply = PullReply(
            tuple(
                PulledPart(shard, 0, 1, 0, 0, 0, offset, layout.shards[shard].size if size < 0 else size)
                for shard, offset, size in parts
            )
        )
        with pytest.raises(ProtocolError, match="expected"):
            await Puller(client._session, into, None)._widen(reply, memoryview(body))
        np.testing.assert_array_equal(into, 5.0)
        await client.close()


async def test_an_unknown_type_in_a_pull_is_an_error_that_says_so() -> None:
    async with memory_cluster(8) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, "a", ["ps-0"], RuleConfig("sgd"))
        client = await make_client(cluster, "a", "w")
        client.wire.pull = "float8"  # type: ignore[assignment]
        with pytest.raises(RemoteError, match="expected dtype float32, bfloat16 or float16; found 'float8'"):
            await client.pull(constant(layout, 0.0))
        await client.close()


@pytest.mark.parametrize("wire", SIXTEEN)
async def test_over_sockets_in_threads_every_shard_is_at_one_version(wire: WireType) -> None:
    """Shards that are rounded in threads, sent and widened in threads, while others are pushed."""
    async with serving() as store:
        clients = []
        for incarnation in range(1, 4):
            hello = make_hello("worker", "w", incarnation, "")
            client = ParameterClient(
                StreamTransport(), partial(_same, hello), store, "a", wire_push=wire, wire_pull=wire
            )
            await client.attach(deadline_s=30)
            clients.append(client)
        writer, *readers = clients
        flat = np.zeros(writer.layout.flat_size, np.float32)
        await writer.pull(flat, exact=True)
        clear, ones = PushSet(writer.layout, 1.0), PushSet(writer.layout, 1.0)
        clear.delta(0, -flat)
        ones.delta(0, np.ones(writer.layout.flat_size, np.float32))
        await writer.push(clear, exact=True)

        async def write() -> None:
            for _ in range(10):
                for push in [writer.start_push(ones) for _ in range(3)]:
                    assert not (await push).refused

        await read_while(write(), readers)
        await writer.pull(flat)
        assert flat.min() == flat.max() == 30
        for client in clients:
            await client.close()


def _same(hello: Hello) -> Hello:
    return hello

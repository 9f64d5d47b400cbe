"""Clients that push and pull 16 bits, against real servers: what arrives, exactly once, never torn; hostile peers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest

from adamctl.errors import ProtocolError, RemoteError
from adamctl.kernels import convert
from adamctl.kernels.feedback import round_with_feedback
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.model.wire_types import WireType
from adamctl.net.faults import LinkFaults
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.virtual import run_virtual
from adamctl.roles.ps import server
from adamctl.roles.ps.client import ParameterClient, PushSet
from adamctl.roles.ps.core_instructions import AnswerPull, Refuse
from adamctl.roles.ps.pulling import Puller
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import Hello, PulledPart, PullReply, PullRequest, PushPart, PushRequest, PushSource
from tests.cluster import memory_cluster
from tests.roles.ps.core_harness import JOB, Harness
from tests.roles.ps.ps_cluster import add_job, make_client, make_layout, pulled, start_servers, views
from tests.roles.ps.test_client import TWO, constant, push_of, random_flat
from tests.roles.ps.test_sockets import serving

WIDE = make_layout(((40, 30), (40,)))
SIXTEEN = ["bfloat16", "float16"]


def narrowed(values: np.ndarray, dtype: str) -> np.ndarray:
    out = np.empty(values.size, convert.NARROW[dtype])
    convert.narrowed(np.ascontiguousarray(values, np.float32).reshape(-1), out)
    return out


def widened(values: np.ndarray) -> np.ndarray:
    out = np.empty(values.size, np.float32)
    convert.widened(values, out)
    return out


# --- the server alone ------------------------------------------------------------------------------------------------


def push_narrow(
    h: Harness,
    token: Any,
    sequence: int,
    kind: UpdateKind,
    arrays: list[np.ndarray],
    dtypes: str,
    lr: float = 0.1,
    body_bytes: int | None = None,
    **changes: Any,
) -> None:
    """Pushes tensor 0 whole; `changes` go into the source's header."""
    wire = [narrowed(array, dtypes) if dtypes != "float32" else array.astype(np.float32) for array in arrays]
    body = b"".join(array.tobytes() for array in wire)[:body_bytes]
    examples = len(arrays[0]) if kind == UpdateKind.FACTORS else 0
    fields = {"tensor": 0, "row_start": 0, "row_stop": 40, "offset": 0, "examples": examples, "dtype": dtypes}
    fields["activations_offset"] = wire[0].nbytes if examples else 0
    parts = tuple(PushPart(shard.index, sequence, 0) for shard in h.layout.shards if shard.tensor == 0)
    source = PushSource(**{"kind": kind, **fields, **changes})
    request = PushRequest(JOB, h.epochs(), lr, 1, 1, (source,), parts)
    h.take(h.core.push(token, 1, ("w", 1), request, memoryview(body), 0.0))


def tensor_value(h: Harness) -> np.ndarray:
    return np.concatenate([h.job.shards[s.index].values.array for s in h.layout.shards if s.tensor == 0])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dtype", get_args(WireType))
@pytest.mark.parametrize("rule", ["add", "sgd", "momentum", "adagrad", "adam"])
def test_what_is_applied_is_what_was_sent_to_the_bit(rule: str, dtype: str, together: bool) -> None:
    """Gradients, deltas and factors of one type, in one batch and one by one, as the rule does with their float32."""
    generator = np.random.default_rng(4)
    h, plain = Harness(rule, WIDE), Harness(rule, WIDE)
    kinds = [UpdateKind.DELTA, UpdateKind.FACTORS] if rule == "add" else list(UpdateKind)
    for sequence in range(1, 10):
        kind = kinds[sequence % len(kinds)]
        shapes = [(6, 40), (6, 30)] if kind == UpdateKind.FACTORS else [(40, 30)]
        arrays = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
        push_narrow(h, sequence, sequence, kind, arrays, dtype)
        if dtype != "float32":
            arrays = [widened(narrowed(array, dtype)).reshape(array.shape) for array in arrays]
        push_narrow(plain, sequence, sequence, kind, arrays, "float32")
        if not together:
            h.apply()
            plain.apply()
    h.apply()
    plain.apply()
    assert all(code == 0 for sequence in range(1, 10) for code, _ in h.results(sequence))
    np.testing.assert_array_equal(tensor_value(h), tensor_value(plain))
    assert tensor_value(h).any()


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize(
    ("kind", "changes", "body_bytes"),
    [
        (UpdateKind.GRADIENT, {}, 2 * 1200 - 1),
        (UpdateKind.GRADIENT, {"dtype": "float32"}, None),  # says that it is twice as long as it is
        (UpdateKind.GRADIENT, {"offset": 1}, None),
        (UpdateKind.GRADIENT, {"offset": 2}, None),
        (UpdateKind.GRADIENT, {"offset": -2}, None),
        (UpdateKind.FACTORS, {"examples": 7}, None),
        (UpdateKind.FACTORS, {"examples": -1}, None),
        (UpdateKind.FACTORS, {"examples": 1 << 62}, None),
        (UpdateKind.FACTORS, {"activations_offset": 481}, None),
        (UpdateKind.FACTORS, {"activations_offset": 1 << 62}, None),
        (UpdateKind.FACTORS, {"dtype": "float32"}, None),
    ],
)
def test_sizes_that_do_not_fit_the_type_are_refused(
    kind: UpdateKind, changes: dict[str, Any], body_bytes: int | None, dtype: str
) -> None:
    h = Harness("sgd", WIDE)
    arrays = [np.ones((6, 40)), np.ones((6, 30))] if kind == UpdateKind.FACTORS else [np.ones((40, 30))]
    push_narrow(h, "p", 1, kind, arrays, dtype, body_bytes=body_bytes, **changes)
    h.apply()
    assert {code for code, _ in h.results("p")} == {ErrorCode.WRONG_LENGTH}
    assert not tensor_value(h).any()


@pytest.mark.parametrize("dtype", ["float64", "", "bfloat16 ", "x" * 60_000])
def test_an_unknown_type_is_refused_with_what_there_is(dtype: str) -> None:
    h = Harness("sgd", WIDE)
    push_narrow(h, "p", 1, UpdateKind.GRADIENT, [np.ones((40, 30))], "bfloat16", dtype=dtype)
    h.apply()
    answer = h.answers["p"][-1]
    assert {result.code for result in answer.message.results} == {ErrorCode.WRONG_DTYPE}  # type: ignore[union-attr]
    message = answer.message.results[0].message  # type: ignore[union-attr]
    assert message.startswith("expected dtype float32, bfloat16 or float16; found ") and len(message) < 150
    h.take(h.core.pull("q", 1, ("w", 1), PullRequest(JOB, h.epochs(), (0,), dtype), 0.0))
    refused = h.answers["q"][-1]
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.WRONG_DTYPE and refused.message == message
    assert not any(shard.values.readers for shard in h.job.shards.values())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("kind", [UpdateKind.GRADIENT, UpdateKind.DELTA, UpdateKind.FACTORS])
def test_what_is_not_finite_changes_nothing(kind: UpdateKind, dtype: str, bad: float) -> None:
    h = Harness("sgd", WIDE)
    arrays = [np.ones((6, 40)), np.ones((6, 30))] if kind == UpdateKind.FACTORS else [np.ones((40, 30))]
    arrays[-1][-1, -1] = bad
    push_narrow(h, "p", 1, kind, arrays, dtype)
    h.apply()
    codes = [code for code, _ in h.results("p")]
    assert codes[-1] == ErrorCode.NOT_FINITE and set(codes) <= {0, ErrorCode.NOT_FINITE}
    shards = [s for s in h.layout.shards if s.tensor == 0]
    for shard, code in zip(shards, codes, strict=True):
        assert bool(h.job.shards[shard.index].values.array.any()) is (code == 0)


def test_one_place_in_the_body_may_be_used_as_two_types() -> None:
    """Whether it is finite is found for each of them: bits of a finite float32 can be NaN as two bfloat16."""
    h = Harness("sgd", WIDE)
    activations = np.full(180, 1.0, np.float32)
    activations.view(np.uint16)[::2] = 0x7FC0  # NaN as bfloat16; the lower half of a float32
    body = np.ones(240, np.float32).tobytes() + activations.tobytes()
    parts = [PushPart(s.index, sequence, source) for sequence, source in ((1, 0), (2, 1)) for s in WIDE.shards[:1]]
    sources = tuple(PushSource(UpdateKind.FACTORS, 0, 0, 40, 0, 6, 960, dtype) for dtype in ("float32", "bfloat16"))
    request = PushRequest(JOB, h.epochs(), 0.1, 1, 1, sources, tuple(parts))
    h.take(h.core.push("p", 1, ("w", 1), request, memoryview(body), 0.0))
    h.apply()
    assert [code for code, _ in h.results("p")] == [0, ErrorCode.NOT_FINITE]


@pytest.mark.parametrize("dtype", get_args(WireType))
def test_a_pull_lays_the_values_out_as_the_type_needs(dtype: str) -> None:
    h = Harness("add", WIDE)
    shards = tuple(range(len(WIDE.shards)))
    h.take(h.core.pull("q", 1, ("w", 1), PullRequest(JOB, h.epochs(), shards, dtype), 0.0))
    answer = h.answers["q"][-1]
    assert isinstance(answer, AnswerPull) and answer.dtype == dtype
    width, offset = 4 if dtype == "float32" else 2, 0
    for part in answer.message.parts:
        assert (part.offset, part.size) == (offset, WIDE.shards[part.shard].size)
        offset += part.size * width


# --- clients and servers ---------------------------------------------------------------------------------------------


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

    async def scenario() -> None:
        async with memory_cluster(seed) as cluster:
            for name in TWO:
                await cluster.start("ps", name, server.run, {"apply_threads": "0"})
            layout = await add_job(cluster, "a", TWO, RuleConfig("add"))
            clients = [
                await make_client(cluster, "a", f"w{n}", attempt_s=0.2, wire_push=wire, wire_pull=wire)
                for n in range(3)
            ]
            before = constant(layout, 0.0)
            await clients[0].pull(before, exact=True)
            faults = LinkFaults(loss=0.3, duplication=0.5, reordering=0.2)
            for name in TWO:
                for n in range(3):
                    cluster.network.set_faults(faults, f"w{n}", name)
                    cluster.network.set_faults(faults, name, f"w{n}")

            async def work(n: int, client: ParameterClient) -> None:
                pending = []
                for number in range(1, 13):
                    flat = constant(layout, float(4**n))
                    pending.append(client.start_push(push_of(layout, flat, kind="delta")))
                    if number % 4 == 0:
                        await client.pull(np.zeros(layout.flat_size, np.float32), deadline_s=600)
                for push in pending:
                    assert not (await push.wait(600)).refused

            await asyncio.gather(*(work(n, client) for n, client in enumerate(clients)))
            for name in TWO:
                for n in range(3):
                    cluster.network.set_faults(LinkFaults(), f"w{n}", name)
                    cluster.network.set_faults(LinkFaults(), name, f"w{n}")
            after = constant(layout, 0.0)
            await clients[0].pull(after, exact=True)
            for found, start in zip(views(layout, after), views(layout, before), strict=True):
                np.testing.assert_allclose(found - start, 12 * (1 + 4 + 16), atol=1e-3)
            for client in clients:
                await client.close()

    run_virtual(scenario())


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
        stop = False

        async def write() -> None:
            nonlocal stop
            for _ in range(40):
                await writer.push(push_of(layout, constant(layout, 1.0), kind="delta"))
            stop = True

        async def read(client: ParameterClient) -> set[float]:
            seen: set[float] = set()
            flat = constant(layout, 0.0)
            while not stop:
                found = await client.pull(flat)
                for shard in layout.shards:
                    values = flat[shard.offset : shard.offset + shard.size]
                    assert values.min() == values.max() == found.pushes[shard.index] - 1, f"shard {shard.index} is torn"
                    seen.add(float(values[0]))
            return seen

        _, *seen = await asyncio.gather(write(), *(read(client) for client in readers))
        assert len(set().union(*seen)) > 5
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
            await Puller(client, into, None)._widen(reply, memoryview(body))
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
        stop = asyncio.Event()

        async def write() -> None:
            for _ in range(10):
                for push in [writer.start_push(ones) for _ in range(3)]:
                    assert not (await push).refused
            stop.set()

        async def read(client: ParameterClient) -> None:
            into = np.zeros(client.layout.flat_size, np.float32)
            while not stop.is_set():
                found = await client.pull(into)
                for shard in client.layout.shards:
                    values = into[shard.offset : shard.offset + shard.size]
                    assert values.min() == values.max() == found.pushes[shard.index] - 1

        await asyncio.gather(write(), *(read(client) for client in readers))
        await writer.pull(flat)
        assert flat.min() == flat.max() == 30
        for client in clients:
            await client.close()


def _same(hello: Hello) -> Hello:
    return hello

"""A push cut into envelopes: everything in it once, within the limits of the wire, in the server's rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from adamctl.config.load import load_experiment
from adamctl.config.records import BucketRecord, JobRecord
from adamctl.errors import ConfigurationError
from adamctl.model.layout import ParameterLayout, build_layout, cut_layout
from adamctl.model.placement import place_buckets
from adamctl.model.protocol import choose_protocol, servers_of_tensors
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.client.envelope import Envelope, cut_push
from adamctl.roles.ps.client.push_set import Base, PushSet
from adamctl.roles.ps.client.route_table import Route, RouteTable
from adamctl.roles.ps.client.routing import JobRouting, make_routing, runs_of
from adamctl.wire.constants import BODY_ALIGNMENT_BYTES, BODY_BYTES_MAX, TYPED_HEADER_BYTES_MAX, UpdateKind
from tests.roles.ps.ps_cluster import make_layout, make_tensors, views


def make_job_routing(layout: ParameterLayout, servers: int) -> JobRouting:
    names = [f"ps-{number}" for number in range(servers)]
    buckets = {b: BucketRecord(2**40, node) for b, node in place_buckets(layout, "job", names).items()}
    return make_routing("job", JobRecord("running", layout.hash, RuleConfig("sgd"), 1), layout, buckets)


def received(envelopes: list[Envelope], layout: ParameterLayout) -> np.ndarray:
    """Puts the gradients together as servers would, checking what every envelope must be."""
    flat = np.full(layout.flat_size, np.nan, np.float32)
    for envelope in envelopes:
        body = b"".join(bytes(memoryview(piece).cast("B")) for piece in envelope.body)
        assert len(body) == envelope.body_bytes <= BODY_BYTES_MAX
        for part in envelope.parts:
            shard, source = layout.shards[part.shard], envelope.sources[part.source]
            tensor = layout.tensors[shard.tensor]
            assert source.tensor == shard.tensor and source.row_start <= shard.row_start
            assert shard.row_stop <= source.row_stop and source.offset % BODY_ALIGNMENT_BYTES == 0
            rows = source.row_stop - source.row_start
            if source.kind == UpdateKind.FACTORS:
                k = source.examples
                errors = np.frombuffer(body, np.float32, k * rows, source.offset).reshape(k, rows)
                activations = np.frombuffer(body, np.float32, k * tensor.row_size, source.activations_offset)
                values = errors.T @ activations.reshape(k, tensor.row_size)
            else:
                values = np.frombuffer(body, np.float32, rows * tensor.row_size, source.offset)
                values = values.reshape(rows, tensor.row_size)
            mine = values[shard.row_start - source.row_start : shard.row_stop - source.row_start]
            place = flat[shard.offset : shard.offset + shard.size]
            assert np.isnan(place).all(), f"shard {shard.index} is there twice"
            place[:] = mine.reshape(-1)
    return flat


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("factors", [False, True])
def test_every_shard_is_in_exactly_one_envelope_with_its_own_rows(servers: int, factors: bool) -> None:
    layout = make_layout(((40, 30), (40,), (11, 40), (11,)), servers)
    generator = np.random.default_rng(0)
    expected = np.full(layout.flat_size, np.nan, np.float32)
    push = PushSet(layout, 0.1)
    for index, tensor in enumerate(layout.tensors):
        place = views(layout, expected)[index]
        if factors and len(tensor.shape) == 2:
            errors = generator.standard_normal((5, 2 * tensor.shape[0])).astype(np.float32)[:, ::2]  # a view
            activations = generator.standard_normal((5, tensor.row_size)).astype(np.float32)
            place[...] = errors.T @ activations
            push.factors(index, errors, activations)
        else:
            place[...] = generator.standard_normal(tensor.shape)
            push.gradient(index, np.ascontiguousarray(place))
    envelopes = cut_push(push, list(range(len(layout.shards))), make_job_routing(layout, servers))
    assert sorted(envelope.server for envelope in envelopes) == [f"ps-{n}" for n in range(servers)]
    np.testing.assert_allclose(received(envelopes, layout), expected, rtol=1e-4, atol=1e-5)
    assert all(part.sequence == part.shard for envelope in envelopes for part in envelope.parts)
    if factors:  # activations travel once per tensor and server
        for envelope in envelopes:
            offsets = {s.tensor: s.activations_offset for s in envelope.sources if s.kind == UpdateKind.FACTORS}
            for source in envelope.sources:
                assert source.kind != UpdateKind.FACTORS or source.activations_offset == offsets[source.tensor]


def test_a_large_push_is_split_at_the_longest_body() -> None:
    layout = cut_layout(make_tensors(((5000, 4000), (5000,))), 1)  # 80 MB
    flat = np.zeros(layout.flat_size, np.float32)
    push = PushSet(layout, 0.1)
    for index, values in enumerate(views(layout, flat)):
        push.gradient(index, values)
    envelopes = cut_push(push, [1] * len(layout.shards), make_job_routing(layout, 1))
    assert len(envelopes) >= 3 and all(envelope.body_bytes <= BODY_BYTES_MAX for envelope in envelopes)
    assert sorted(p.shard for e in envelopes for p in e.parts) == list(range(len(layout.shards)))


def test_factors_larger_than_a_body_are_multiplied_by_the_client() -> None:
    layout = make_layout(((3, 9000), (3,)))
    errors, activations = np.ones((1000, 3), np.float32), np.ones((1000, 9000), np.float32)
    push = PushSet(layout, 0.1)
    push.factors(0, errors, activations)
    (envelope,) = cut_push(push, [1] * len(layout.shards), make_job_routing(layout, 1))
    assert {source.kind for source in envelope.sources} == {UpdateKind.GRADIENT}
    assert np.nanmax(received([envelope], layout)) == np.nanmin(received([envelope], layout)) == 1000.0


def test_one_row_larger_than_a_body_is_refused() -> None:
    layout = make_layout(((2, 9 << 20), (2,)))
    push = PushSet(layout, 0.1)
    push.gradient(0, np.zeros((2, 9 << 20), np.float32))
    with pytest.raises(ConfigurationError, match="do not fit into a frame"):
        cut_push(push, [1] * len(layout.shards), make_job_routing(layout, 1))


@pytest.mark.parametrize("rows", [3000])
def test_headers_stay_within_their_limit_however_many_shards_there_are(rows: int) -> None:
    layout = cut_layout(make_tensors(((rows, 2), (rows,))), rows)
    push = PushSet(layout, 0.1, base=Base(np.full(len(layout.shards), 2**40), np.full(len(layout.shards), 2**40)))
    for index, values in enumerate(views(layout, np.zeros(layout.flat_size, np.float32))):
        push.gradient(index, values)
    routing = make_job_routing(layout, 3)
    envelopes = cut_push(push, [2**40] * len(layout.shards), routing)
    assert max(len(e.parts) for e in envelopes) > 100
    for envelope in envelopes:
        assert len(msgspec.msgpack.encode(envelope.request(push, routing))) <= TYPED_HEADER_BYTES_MAX


def test_shards_that_have_moved_are_cut_alone() -> None:
    layout = make_layout(servers=2)
    push = PushSet(layout, 0.1)
    for index, values in enumerate(views(layout, np.arange(layout.flat_size, dtype=np.float32))):
        push.gradient(index, np.ascontiguousarray(values))
    moved = [2, 3, 7]
    envelopes = cut_push(push, [1] * len(layout.shards), make_job_routing(layout, 2), moved)
    assert sorted(part.shard for envelope in envelopes for part in envelope.parts) == moved
    assert np.isfinite(received(envelopes, layout)).sum() == sum(layout.shards[index].size for index in moved)


def test_runs_join_adjacent_rows_of_one_tensor_only() -> None:
    layout = make_layout()
    everything = runs_of(layout, range(len(layout.shards)))
    assert len(everything) == len(layout.tensors)
    assert sum(run.size for run in everything) == layout.parameter_count
    assert [run.shards for run in runs_of(layout, [0, 1, 3])] == [(0, 1), (3,)]


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((12, 8)),
        np.zeros((8, 12), np.float32),
        np.zeros((13, 8), np.float32),
        np.zeros((12, 16), np.float32)[:, ::2],
    ],
)
def test_gradients_of_the_wrong_type_shape_or_order_are_refused(values: np.ndarray) -> None:
    push = PushSet(make_layout(), 0.1)
    if values.shape == (8, 12):
        values = values[:, :11]
    with pytest.raises(ValueError, match="t0"):
        push.gradient(0, values)


@pytest.mark.parametrize(("k", "out", "other", "inputs"), [(3, 12, 4, 8), (3, 11, 3, 8), (3, 12, 3, 9)])
def test_factors_of_the_wrong_shape_are_refused(k: int, out: int, other: int, inputs: int) -> None:
    with pytest.raises(ValueError, match="t0"):
        PushSet(make_layout(), 0.1).factors(0, np.zeros((k, out), np.float32), np.zeros((other, inputs), np.float32))


# --- copies of activations --------------------------------------------------------------------------------------------


def copies(envelopes: list[Envelope], tensor: int) -> int:
    return sum(tensor in envelope.activations for envelope in envelopes)


@pytest.mark.parametrize("servers", [2, 5, 20])
@pytest.mark.parametrize("name", ["speech", "imagenet"])
def test_activations_are_sent_once_to_each_server_that_holds_a_part(name: str, servers: int) -> None:
    """Adam 3.2.6; the networks of the examples, pushed as their runs do."""
    experiment = load_experiment(Path(__file__).resolve().parents[4] / f"examples/{name}.toml").experiment
    layout = build_layout(experiment.model, servers)
    routing = make_job_routing(layout, servers)
    examples = experiment.train.batch * experiment.train.n_push
    holders = servers_of_tensors(layout, dict(enumerate(routing.primary)))
    push = PushSet(layout, 0.1)
    factored = []
    for index, tensor in enumerate(layout.tensors):
        if choose_protocol(tensor, examples, holders[index]) == "factors":
            errors = np.zeros((examples, tensor.shape[0]), np.float32)
            push.factors(index, errors, np.zeros((examples, tensor.row_size), np.float32))
            factored.append(index)
        else:
            push.gradient(index, np.zeros(tensor.size, np.float32))
    envelopes = cut_push(push, [1] * len(layout.shards), routing)
    assert len(factored) >= 3
    for index in factored:
        assert copies(envelopes, index) == holders[index]


def test_a_tensor_that_does_not_fit_behind_others_gets_an_envelope_of_its_own() -> None:
    """Cut in the middle, both halves would carry its activations."""
    layout = make_layout(((7200, 1000), (2,), (20_000, 100), (3,)), 1)
    push = PushSet(layout, 0.1)
    push.gradient(0, np.zeros(layout.tensors[0].size, np.float32))  # fills all but 4 MiB of a frame
    push.factors(2, np.zeros((60, 20_000), np.float32), np.zeros((60, 100), np.float32))  # in runs of up to 8 MiB
    envelopes = cut_push(push, [1] * len(layout.shards), make_job_routing(layout, 1))
    assert len(envelopes) == 2 and copies(envelopes, 2) == 1
    received(envelopes[1:], layout)


@pytest.mark.parametrize("connections", [1, 2, 4])
def test_several_connections_carry_every_shard_once_and_keep_neighbours_together(connections: int) -> None:
    layout = make_layout(((400, 300), (400,), (110, 400), (110,)), 2)
    names = ["ps-0", "ps-1"]
    buckets = {b: BucketRecord(1, node) for b, node in place_buckets(layout, "job", names).items()}
    record = JobRecord("running", layout.hash, RuleConfig("sgd"), 1)
    routing = make_routing("job", record, layout, buckets, RouteTable(connections))
    push = PushSet(layout, 0.1)
    for index, tensor in enumerate(layout.tensors):
        push.gradient(index, np.full(tensor.size, index + 1, np.float32))
    envelopes = cut_push(push, [1] * len(layout.shards), routing)
    assert {envelope.route for envelope in envelopes} == {Route(n, c) for n in names for c in range(connections)}
    flat = received(envelopes, layout)
    assert all((view == index + 1).all() for index, view in enumerate(views(layout, flat)))
    for envelope in envelopes:
        assert {routing.route_of(part.shard) for part in envelope.parts} == {envelope.route}

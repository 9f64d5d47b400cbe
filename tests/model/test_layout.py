"""The cut of a model into shards and buckets, and their placement: what must hold for any model and server count."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, Dropout, Local2D, Logistic, MaxPool2D, Model, Softmax
from adamctl.model.layout import (
    ALIGNMENT,
    BUCKETS_PER_SERVER,
    ELEMENT_BYTES,
    SHARD_BYTES_MAX,
    Owners,
    ParameterLayout,
    Tensor,
    bucket_ranges,
    build_layout,
)
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.stages import stages_of
from tests.model.partition.any_model import cuts_of
from tests.model.partition.any_model import models as any_models

MNIST = Model((28, 28, 1), (Conv2D(10, 5), MaxPool2D(2), Conv2D(20, 5), MaxPool2D(2), Dense(400), Softmax(10)))


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Networks of any form, a few of them with rows or tensors larger than a shard."""
    units = st.sampled_from([1, 2, 3, 10, 31, 64, 400, 1000])
    dense = [Dense(draw(units)) for _ in range(draw(st.integers(0, 3)))]
    head = Softmax(draw(st.integers(1, 50)))
    if draw(st.booleans()):
        features = draw(st.sampled_from([1, 5, 17, 300, 2000, 300_000]))
        if features > SHARD_BYTES_MAX // ELEMENT_BYTES:
            dense = [Dense(draw(st.integers(1, 3))), *dense]
        return Model((features,), (*dense, Dropout(0.1), head))
    kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    padding = draw(st.sampled_from(["valid", "same"]))
    conv = Conv2D(draw(units), kernel, stride, padding)
    image = (draw(st.integers(5, 20)), draw(st.integers(5, 20)), draw(st.integers(1, 4)))
    return Model(image, (conv, *dense, head))


SERVERS = st.integers(1, 12)


@settings(deadline=None, max_examples=60)
@given(models(), SERVERS)
def test_shards_cover_every_tensor_exactly_once_in_order(model: Model, servers: int) -> None:
    layout = build_layout(model, servers)
    assert [shard.index for shard in layout.shards] == list(range(len(layout.shards)))
    for number, tensor in enumerate(layout.tensors):
        mine = [shard for shard in layout.shards if shard.tensor == number]
        rows = [row for shard in mine for row in range(shard.row_start, shard.row_stop)]
        assert rows == list(range(tensor.shape[0]))
        for shard in mine:
            assert shard.offset == tensor.offset + shard.row_start * tensor.row_size
            assert shard.size == (shard.row_stop - shard.row_start) * tensor.row_size > 0
    tensors = [shard.tensor for shard in layout.shards]
    assert tensors == sorted(tensors)


@settings(deadline=None, max_examples=60)
@given(models(), SERVERS)
def test_a_shard_is_at_most_1_mib_unless_one_row_is_larger(model: Model, servers: int) -> None:
    for shard in build_layout(model, servers).shards:
        assert shard.size * ELEMENT_BYTES <= SHARD_BYTES_MAX or shard.row_stop - shard.row_start == 1


@settings(deadline=None, max_examples=60)
@given(models(), SERVERS)
def test_ten_buckets_per_server_where_rows_allow(model: Model, servers: int) -> None:
    layout = build_layout(model, servers)
    share_bytes = layout.parameter_count * ELEMENT_BYTES // (BUCKETS_PER_SERVER * servers)
    if all(tensor.row_size * ELEMENT_BYTES <= share_bytes for tensor in layout.tensors):
        assert len(layout.buckets) >= BUCKETS_PER_SERVER * servers
    for bucket in layout.buckets:
        one_row = [shard.row_stop - shard.row_start for shard in layout.shards_of(bucket)] == [1]
        assert bucket.size_bytes <= share_bytes or one_row


@settings(deadline=None, max_examples=60)
@given(models(), SERVERS)
def test_a_bucket_is_a_run_of_adjacent_shards_of_one_layer(model: Model, servers: int) -> None:
    layout = build_layout(model, servers)
    runs = [range(bucket.shard_start, bucket.shard_stop) for bucket in layout.buckets]
    assert [shard for run in runs for shard in run] == list(range(len(layout.shards)))
    for bucket in layout.buckets:
        shards = layout.shards_of(bucket)
        assert len({layout.tensors[shard.tensor].layer for shard in shards}) == 1
        assert bucket.size_bytes == sum(shard.size for shard in shards) * ELEMENT_BYTES
        assert all(layout.bucket_of_shard[shard.index] == bucket.index for shard in shards)
    assert [bucket.index for bucket in layout.buckets] == list(range(len(layout.buckets)))


@settings(deadline=None, max_examples=60)
@given(models(), SERVERS)
def test_tensors_start_on_their_own_cache_line_and_do_not_overlap(model: Model, servers: int) -> None:
    layout = build_layout(model, servers)
    end = 0
    for tensor in layout.tensors:
        assert tensor.offset % ALIGNMENT == 0
        assert end <= tensor.offset < end + ALIGNMENT
        end = tensor.offset + tensor.size
    assert end <= layout.flat_size < end + ALIGNMENT and layout.flat_size % ALIGNMENT == 0
    assert layout.parameter_count == sum(tensor.size for tensor in layout.tensors)


def identity(layout: ParameterLayout) -> object:
    """Everything that two sides must agree about."""
    tensors = [(t.name, t.layer, t.shape, t.offset, t.dtype) for t in layout.tensors]
    return tensors, layout.shards, layout.buckets


@settings(deadline=None, max_examples=60)
@given(models(), models(), SERVERS, SERVERS)
def test_hashes_are_equal_for_equal_layouts_and_only_for_them(one: Model, two: Model, few: int, many: int) -> None:
    layouts = [build_layout(model, servers) for model in (one, two) for servers in (few, many)]
    for a in layouts:
        for b in layouts:
            assert (a.hash == b.hash) is (identity(a) == identity(b))
    assert build_layout(one, few).hash == layouts[0].hash


def test_the_hash_says_neither_how_values_begin_nor_what_is_computed_with_them() -> None:
    plain = build_layout(Model((8,), (Dense(6), Softmax(3))), 1)
    other = build_layout(Model((8,), (Dense(6, "relu", "he"), Dropout(0.5), Softmax(3))), 1)
    assert plain.hash != other.hash, "softmax is another layer of the model"
    assert plain.hash == build_layout(Model((8,), (Dense(6, "relu", "he"), Softmax(3))), 1).hash


def test_the_hash_is_the_same_in_every_process() -> None:
    """Compared over the network between versions: a change of this value ends every attachment between them."""
    assert build_layout(MNIST, 2).hash == "a1b411698f78041d8b37f0ba3ffedec0"


def test_tensors_are_weights_output_first_then_biases() -> None:
    layout = build_layout(MNIST, 1)
    assert [(tensor.name, tensor.shape, tensor.layer) for tensor in layout.tensors] == [
        ("conv2d1.weight", (10, 5, 5, 1), 0),
        ("conv2d1.bias", (10,), 0),
        ("conv2d2.weight", (20, 5, 5, 10), 2),
        ("conv2d2.bias", (20,), 2),
        ("dense1.weight", (400, 320), 4),
        ("dense1.bias", (400,), 4),
        ("softmax1.weight", (10, 400), 5),
        ("softmax1.bias", (10,), 5),
    ]
    assert {tensor.dtype for tensor in layout.tensors} == {"float32"}


def test_a_tensor_goes_over_the_wire() -> None:
    tensor = build_layout(MNIST, 1).tensors[4]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tensor), type=Tensor) == tensor


# --- what is refused ------------------------------------------------------------------------------------------------


def test_without_servers_a_layout_is_cut_as_for_one() -> None:
    assert build_layout(MNIST, 0).shards == build_layout(MNIST, 1).shards
    with pytest.raises(ConfigurationError, match=r"cluster\.ps: expected at least 0 servers; found -1"):
        build_layout(MNIST, -1)


def test_a_model_that_does_not_fit_together_has_no_layout() -> None:
    with pytest.raises(ConfigurationError, match=r"model.layers\[0\] \(conv2d\)"):
        build_layout(Model((4, 4, 1), (Conv2D(2, 5), Softmax(2))), 1)


# --- how values begin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "distribution", "scale"),
    [
        (Dense(50, "relu"), "normal", np.sqrt(2 / 300)),
        (Dense(50), "uniform", np.sqrt(6 / 350)),
        (Dense(50, "tanh", "he"), "normal", np.sqrt(2 / 300)),
        (Dense(50, "relu", "glorot"), "uniform", np.sqrt(6 / 350)),
        (Dense(50, "relu", "lecun"), "normal", np.sqrt(1 / 300)),
        (Dense(50, "relu", "zeros"), "zeros", 0.0),
        (Dense(50, "relu", 0.25), "constant", 0.25),
        (Dense(50, "relu", 0), "constant", 0.0),
    ],
    ids=str,
)
def test_dense_weights_begin_by_their_activation(layer: Dense, distribution: str, scale: float) -> None:
    """He et al. 2015 eq. 10 before rectifiers, Glorot and Bengio 2010 eq. 16 elsewhere, unless the layer says."""
    weight, bias, *_ = build_layout(Model((300,), (layer, Softmax(3))), 1).tensors
    assert (weight.distribution, weight.scale) == (distribution, pytest.approx(scale))
    assert (bias.distribution, bias.scale) == ("zeros", 0.0)


def test_pytorchs_initial_values_are_of_one_interval_biases_too() -> None:
    """torch.nn.Linear and Conv2d: U(+-sqrt(1 / fan_in)) for both."""
    layers = (Conv2D(20, 5, activation="relu", init="pytorch"), Softmax(3, "pytorch"))
    for tensor in build_layout(Model((6, 6, 10), layers), 1).tensors:
        fan_in = 5 * 5 * 10 if tensor.layer == 0 else 2 * 2 * 20
        assert (tensor.distribution, tensor.scale) == ("uniform", pytest.approx(np.sqrt(1 / fan_in)))


@pytest.mark.parametrize("layer", [Conv2D(2, 3, init=np.inf), Local2D(2, 3, init=np.nan), Dense(3, init=-np.inf)])
def test_a_constant_that_is_not_finite_is_refused(layer: Conv2D | Local2D | Dense) -> None:
    with pytest.raises(ConfigurationError, match=r"init must be finite; found"):
        build_layout(Model((6, 6, 1), (layer, Softmax(2))), 1)


def test_a_convolutions_fan_counts_its_window() -> None:
    layers = (Conv2D(20, 5, activation="relu"), Conv2D(30, (2, 3)), Softmax(3))
    relu, _, plain, *_ = build_layout(Model((12, 12, 10), layers), 1).tensors
    assert (relu.distribution, relu.scale) == ("normal", pytest.approx(np.sqrt(2 / (5 * 5 * 10))))
    assert plain.distribution == "uniform"
    assert plain.scale == pytest.approx(np.sqrt(6 / (2 * 3 * 20 + 2 * 3 * 30)))


def test_a_map_of_a_group_has_weights_for_the_channels_of_its_group() -> None:
    layers = (Conv2D(20, 5, activation="relu", groups=2), Softmax(3))
    weight, *_ = build_layout(Model((12, 12, 10), layers), 1).tensors
    assert weight.shape == (20, 5, 5, 5)
    assert weight.scale == pytest.approx(np.sqrt(2 / (5 * 5 * 5)))


def test_a_local_layer_is_cut_by_rows_each_with_all_its_weights() -> None:
    """Each place has weights of its own (DistBelief 5), scaled by the pixels that one of its outputs reads."""
    layout = build_layout(Model((20, 16, 3), (Local2D(8, 5, activation="relu"), Logistic(4)), "logistic"), 2)
    weight, bias, *_ = layout.tensors
    assert (weight.name, weight.shape) == ("local2d1.weight", (16, 12, 8, 5, 5, 3))
    assert (bias.name, bias.shape) == ("local2d1.bias", (16, 12, 8))
    assert weight.distribution == "normal" and weight.scale == pytest.approx(np.sqrt(2 / 75))
    rows = [shard for shard in layout.shards if shard.tensor == 0]
    assert all(shard.size == (shard.row_stop - shard.row_start) * 12 * 8 * 75 for shard in rows)
    assert len(rows) > 1 and rows[-1].row_stop == 16


def test_logistic_outputs_are_a_dense_layer() -> None:
    layout = build_layout(Model((7,), (Logistic(5),), "logistic"), 1)
    assert [(tensor.name, tensor.shape) for tensor in layout.tensors] == [
        ("logistic1.weight", (5, 7)),
        ("logistic1.bias", (5,)),
    ]


def test_ranges_of_buckets_are_named() -> None:
    assert bucket_ranges([4]) == "bucket 4"
    assert bucket_ranges([9, 3, 7, 8]) == "buckets 3, 7-9"
    assert bucket_ranges([1, 2]) == "buckets 1-2"
    assert bucket_ranges([7, 0, 1, 2, 5, 9, 10]) == "buckets 0-2, 5, 7, 9-10"


# --- partitions of a replica ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(models(), SERVERS)
def test_one_partition_has_the_layout_of_a_whole_replica(model: Model, servers: int) -> None:
    layout = build_layout(model, servers, make_plan(model, 1).owners)
    assert layout == build_layout(model, servers) and layout.hash == build_layout(model, servers).hash
    assert set(layout.partition_of_bucket) == {0}


def test_the_hash_of_a_layout_does_not_change_from_version_to_version() -> None:
    """Jobs and checkpoints that are there would be refused."""
    assert build_layout(MNIST, 2).hash == "a1b411698f78041d8b37f0ba3ffedec0"
    assert build_layout(MNIST, 2, make_plan(MNIST, 2).owners).hash == "047310851a55caedca3b330114971ac2"


@settings(deadline=None, max_examples=60, print_blob=True)
@given(st.data(), SERVERS, st.integers(2, 9))
def test_shards_and_buckets_cross_no_boundary_of_a_partition(data: st.DataObject, servers: int, count: int) -> None:
    model = data.draw(any_models())
    cuts = {stage.name: data.draw(cuts_of(stage, count)) for stage in stages_of(model)}
    owners = make_plan(model, count, cuts).owners
    assert owners is not None
    layout = build_layout(model, servers, owners)
    rows: list[dict[int, int]] = [{} for _ in layout.tensors]
    for bucket in layout.buckets:
        for shard in layout.shards_of(bucket):
            for row in range(shard.row_start, shard.row_stop):
                rows[shard.tensor][row] = layout.partition_of_bucket[bucket.index]
    for tensor, ranges, found in zip(layout.tensors, owners.ranges, rows, strict=True):
        wanted = {row: partition for start, stop, partition in ranges for row in range(start, stop)}
        assert list(wanted) == list(range(tensor.shape[0])) and found == wanted
    assert layout.hash != build_layout(model, servers).hash


def test_the_hash_covers_who_owns_what() -> None:
    one, other = (make_plan(MNIST, 2, {"softmax1": Cut(whole=p), "dense1": Cut(whole=p)}).owners for p in (0, 1))
    assert build_layout(MNIST, 2, one).shards == build_layout(MNIST, 2, other).shards
    assert build_layout(MNIST, 2, one).hash != build_layout(MNIST, 2, other).hash


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ((), "expected owners of 2 tensors; found those of 0"),
        ((((0, 2, 0),), ((0, 2, 0), (2, 4, 1))), "expected owners of its 4 rows in order"),
        ((((0, 2, 0), (3, 4, 1)), ((0, 4, 0),)), "expected owners of its 4 rows in order"),
        ((((0, 2, 0), (1, 4, 1)), ((0, 4, 0),)), "expected owners of its 4 rows in order"),
        ((((0, 2, 0), (2, 4, 2)), ((0, 4, 0),)), "from 0 to 1; found"),
        ((((0, 4, 0), (4, 4, 1)), ((0, 4, 0),)), "expected owners of its 4 rows in order"),
        ((((0, 4, 0), (4, 5, 1)), ((0, 4, 0),)), "expected owners of its 4 rows in order"),
    ],
)
def test_owners_that_do_not_cover_a_tensor_are_refused(ranges: tuple, message: str) -> None:
    model = Model((3,), (Softmax(4),))
    with pytest.raises(ConfigurationError, match=message):
        build_layout(model, 1, Owners(2, ranges))

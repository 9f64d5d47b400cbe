"""Gradient or factors: what moves fewer bytes, k * (out + S * in) against out * in (Adam 3.2.6)."""

from __future__ import annotations

import pytest

from adamctl.model.description import Conv2D, Dense, Local2D, Logistic, Model, Softmax
from adamctl.model.layout import Tensor, build_layout
from adamctl.model.protocol import bytes_per_push, choose_protocol, factors_bytes, servers_of_tensors

MODEL = Model((28, 28, 1), (Conv2D(20, 5), Dense(400), Softmax(10)))


@pytest.mark.parametrize(
    ("examples", "servers", "chosen"),
    [(32, 1, "factors"), (128, 1, "factors"), (256, 1, "gradient"), (32, 10, "factors"), (100, 10, "gradient")],
)
def test_what_moves_fewer_bytes_is_chosen(examples: int, servers: int, chosen: str) -> None:
    tensor = Tensor("dense1.weight", 0, (400, 400), 0, "zeros", 0.0)
    assert (factors_bytes(tensor, examples, servers) < tensor.size * 4) is (chosen == "factors")
    assert choose_protocol(tensor, examples, servers) == chosen


def test_convolutions_and_biases_are_gradients() -> None:
    for entry in bytes_per_push(build_layout(MODEL, 1), 1, 1):
        dense = entry.name in ("dense1.weight", "softmax1.weight")
        assert (entry.protocol == "factors") is dense
        assert (entry.factors_bytes is not None) is dense


def test_logistic_outputs_are_pushed_as_factors_and_local_layers_are_not() -> None:
    model = Model((12, 12, 3), (Local2D(4, 3), Logistic(300)), "logistic")
    chosen = {entry.name: entry.protocol for entry in bytes_per_push(build_layout(model, 1), 1, 32)}
    assert chosen["logistic1.weight"] == "factors"
    assert chosen["local2d1.weight"] == chosen["local2d1.bias"] == "gradient"


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_every_server_that_holds_a_part_needs_all_activations(servers: int) -> None:
    layout = build_layout(MODEL, servers)
    entries = bytes_per_push(layout, servers, 32)
    big = next(entry for entry in entries if entry.name == "dense1.weight")
    rows, row_size = layout.tensors[big.tensor].shape[0], layout.tensors[big.tensor].row_size
    assert big.servers == servers
    assert big.factors_bytes == 32 * (rows + servers * row_size) * 4
    assert big.chosen_bytes == min(big.gradient_bytes, big.factors_bytes)


def test_servers_are_counted_per_tensor() -> None:
    layout = build_layout(MODEL, 2)
    everything_on_one = servers_of_tensors(layout, {bucket.index: "a" for bucket in layout.buckets})
    assert set(everything_on_one) == {1}
    alternating = servers_of_tensors(layout, {bucket.index: "ab"[bucket.index % 2] for bucket in layout.buckets})
    assert max(alternating) == 2

"""Gradient or factors: what moves fewer bytes, k * (out + S * in) against out * in (Adam 3.2.6); then by time."""

from __future__ import annotations

import pytest

from adamctl.model.description import Conv2D, Dense, Local2D, Logistic, Model, Softmax
from adamctl.model.layout import Tensor, build_layout
from adamctl.model.protocol import (
    Prices,
    PushCost,
    bytes_per_push,
    choose_protocol,
    factors_bytes,
    has_factors,
    push_costs,
    servers_of_tensors,
    weigh_protocols,
)
from adamctl.model.wire_types import WireType
from tests.tensors import tensor_named

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
    assert (big.protocol == "factors") is (big.factors_bytes < big.gradient_bytes)


def test_servers_are_counted_per_tensor() -> None:
    layout = build_layout(MODEL, 2)
    everything_on_one = servers_of_tensors(layout, {bucket.index: "a" for bucket in layout.buckets})
    assert set(everything_on_one) == {1}
    alternating = servers_of_tensors(layout, {bucket.index: "ab"[bucket.index % 2] for bucket in layout.buckets})
    assert max(alternating) == 2


# --- weighed by what was measured -------------------------------------------------------------------------------------

LARGE = PushCost(0, 128, 4096 * 4096, 4 * 4096 * 4096, 4 * 128 * (4096 + 4096))
SMALL = PushCost(2, 32, 10 * 400, 4 * 10 * 400, 4 * 32 * 410)
BOTH = frozenset({0, 2})


def prices(busy: float, link_bytes_per_s: float = 1e9) -> Prices:
    return Prices(link_bytes_per_s, busy, products_per_s=50e9, adds_per_s=3e9)


def test_idle_servers_are_sent_what_is_smaller() -> None:
    for before in (frozenset[int](), frozenset({0}), BOTH):
        assert 0 in weigh_protocols([LARGE], before, prices(0.0))
        assert not weigh_protocols([SMALL], before & {2}, prices(0.0))


def test_a_slow_network_gets_what_is_smaller_however_busy_the_servers() -> None:
    assert weigh_protocols([LARGE], frozenset({0}), prices(0.98, link_bytes_per_s=1e7)) == {0}


def test_busy_servers_are_sent_what_is_less_work() -> None:
    """128 examples take 128 multiply-adds for a weight; a gradient takes one addition, eight times faster here."""
    assert weigh_protocols([LARGE], frozenset({0}), prices(0.5)) == {0}
    assert weigh_protocols([LARGE], frozenset({0}), prices(0.9)) == frozenset()


def test_a_server_that_was_relieved_is_not_burdened_again() -> None:
    """Gradients take an eighth of the work, so its load falls to an eighth: that is no reason to go back."""
    relieved = 0.9 * (1 / 3e9) / (128 / 50e9)
    assert relieved == pytest.approx(0.117, abs=0.001)
    assert weigh_protocols([LARGE], frozenset(), prices(relieved)) == frozenset()
    assert weigh_protocols([LARGE], frozenset(), prices(relieved / 4)) == {0}, "the load itself has gone"


@pytest.mark.parametrize("busy", [x / 20 for x in range(21)])
@pytest.mark.parametrize("link", [1e8, 1e9, 1e10])
def test_a_choice_stays_where_it_leads(busy: float, link: float) -> None:
    """Weighed again with the load that follows from it, nothing changes."""
    now, costs = prices(busy, link), [LARGE, SMALL]
    for before in (frozenset[int](), frozenset({0}), BOTH):
        chosen = weigh_protocols(costs, before, now)
        load = min(busy * work_s(costs, chosen, now) / work_s(costs, before, now), 1.0)
        assert weigh_protocols(costs, chosen, prices(load, link)) == chosen


def work_s(costs: list[PushCost], choice: frozenset[int], now: Prices) -> float:
    return sum(
        cost.examples * cost.size / now.products_per_s if cost.tensor in choice else cost.size / now.adds_per_s
        for cost in costs
    )


def test_costs_count_a_copy_of_the_activations_for_each_way() -> None:
    layout = build_layout(MODEL, 2)
    index = layout.tensors.index(tensor_named(layout, "dense1.weight"))
    (one,) = push_costs({index: layout.tensors[index]}, 32, [1] * len(layout.tensors))
    (two,) = push_costs({index: layout.tensors[index]}, 32, [2] * len(layout.tensors))
    assert two.factors_bytes - one.factors_bytes == 4 * 32 * layout.tensors[index].row_size
    assert one.gradient_bytes == 4 * one.size == 4 * layout.tensors[index].size and one.examples == 32


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_sixteen_bits_halve_the_bytes_of_either_protocol_and_leave_the_choice(wire: WireType) -> None:
    layout = build_layout(MODEL, 2)
    wide, narrow = bytes_per_push(layout, 2, 32), bytes_per_push(layout, 2, 32, wire=wire)
    for one, other in zip(wide, narrow, strict=True):
        assert one.gradient_bytes == 2 * other.gradient_bytes
        assert one.protocol == other.protocol
        assert one.factors_bytes is None or one.factors_bytes == 2 * (other.factors_bytes or 0)
    (cost,), (narrow_cost,) = (push_costs({2: layout.tensors[2]}, 32, (1,) * 6, of) for of in ("float32", wire))
    assert cost.gradient_bytes == 2 * narrow_cost.gradient_bytes
    assert cost.factors_bytes == 2 * narrow_cost.factors_bytes


def test_a_matrix_of_a_layer_of_ones_own_is_no_product_of_factors() -> None:
    dense, own = Tensor("dense1.weight", 0, (4, 3), 0, "zeros", 0.0), Tensor("mix1.mixing", 0, (4, 3), 0, "zeros", 0.0)
    assert has_factors(dense) and not has_factors(own)

"""What a run took scales predictions; a slow partition is proposed less of each layer, but not for noise."""

from __future__ import annotations

import pytest

from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax
from adamctl.model.partition.cost import price
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.measured import propose_cuts, scaled, slowness
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Rate, Rates
from adamctl.model.partition.rules import make_plan
from tests.model.partition.machines import Even, conditions

DENSE = Model((1000,), (Dense(600), Dense(400), Softmax(10)))
IMAGES = Model((32, 32, 3), (Conv2D(16, 5, padding="same"), MaxPool2D(2), Conv2D(24, 3), Dense(40), Softmax(10)))
KINDS = ("conv2d", "conv2d+maxpool2d", "dense", "softmax")


def rates(per_s: float = 1e9) -> Rates:
    return Rates(1 << 20, 1 << 25, per_s, tuple(Rate(kind, "any", 1 << 16, 8, per_s) for kind in KINDS))


def taken(plan: PartitionPlan, *slower: float) -> list[float]:
    """Seconds for one example of partitions that are slower than `Even` by these factors."""
    found = price(plan, Even(), conditions(batch=10)).compute_s
    return [seconds * factor / 10 for seconds, factor in zip(found, slower, strict=True)]


def test_slowness_is_what_was_measured_over_what_was_predicted() -> None:
    plan = make_plan(IMAGES, 2)
    assert slowness(plan, Even(), 10, conditions().pushing, taken(plan, 1.0, 3.0)) == pytest.approx((1.0, 3.0))


@pytest.mark.parametrize("model", [DENSE, IMAGES])
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_scaled_rates_predict_what_the_run_took(model: Model, partitions: int) -> None:
    plan = make_plan(model, partitions)
    wanted = [seconds / 8 for seconds in price(plan, rates(), conditions(batch=8)).compute_s]
    found = scaled(rates(5e9), plan, 8, conditions(batch=8).pushing, [2 * seconds for seconds in wanted])
    again = price(plan, found, conditions(batch=8)).compute_s
    assert sum(again) / 8 == pytest.approx(2 * sum(wanted))
    assert again == pytest.approx([16 * seconds for seconds in wanted])


@pytest.mark.parametrize("model", [DENSE, IMAGES])
@pytest.mark.parametrize("slower", [(1.0, 2.0), (3.0, 1.0), (1.0, 1.0, 2.0), (1.0, 4.0, 2.0, 1.0)])
def test_a_slow_partition_is_proposed_as_much_as_the_others_can_do_meanwhile(
    model: Model, slower: tuple[float, ...]
) -> None:
    plan = make_plan(model, len(slower))
    before = taken(plan, *slower)
    cuts = propose_cuts(plan, before)
    after = taken(make_plan(model, len(slower), cuts), *slower)
    assert max(after) < 0.95 * max(before)
    spread = max(after) / min(after)
    assert spread < (1.05 if model is DENSE else 1.6)  # rows and maps are few


def test_what_stays_whole_is_counted_and_not_moved() -> None:
    """The first partition has a layer for itself, so it gets less of the others."""
    plan = make_plan(DENSE, 2, {"dense2": Cut(whole=0)})
    cuts = propose_cuts(plan, taken(plan, 1.0, 1.0))
    assert set(cuts) <= {"dense1", "softmax1"} and cuts["dense1"].at is not None
    assert cuts["dense1"].at[0] < 300
    after = taken(make_plan(DENSE, 2, {**cuts, "dense2": Cut(whole=0)}), 1.0, 1.0)
    assert max(after) / min(after) < 1.05


def test_whole_groups_of_maps_move() -> None:
    model = Model((6, 6, 8), (Conv2D(16, 3, groups=8), Softmax(4)))
    plan = make_plan(model, 2, {"conv2d1": Cut("groups")})
    assert propose_cuts(plan, taken(plan, 1.0, 3.0))["conv2d1"] == Cut("maps", (12,))


def test_nothing_is_proposed_where_it_would_save_little() -> None:
    plan = make_plan(DENSE, 2)
    assert propose_cuts(plan, taken(plan, 1.0, 1.05)) == {}
    assert propose_cuts(make_plan(DENSE, 1), [1.0]) == {}
    assert propose_cuts(plan, [0.0, 1.0]) == {}  # nothing was measured of one
    whole = {name: Cut(whole=0) for name in ("dense1", "dense2", "softmax1")}
    assert propose_cuts(make_plan(DENSE, 2, whole), [1.0, 1.0]) == {}

"""Where networks are cut when the user does not say, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Layer,
    Local2D,
    LocalContrastNorm,
    Logistic,
    MaxPool2D,
    Model,
    Softmax,
)
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.rules import make_plan
from tests.model.partition.any_model import models


def cuts(model: Model, partitions: int, given: dict | None = None) -> dict[str, Cut]:
    return {stage.name: stage.cut for stage in make_plan(model, partitions, given).stages}


def test_rows_for_convolutions_units_for_dense_and_followers_as_the_stage_before() -> None:
    model = Model(
        (33, 33, 3), (Conv2D(16, 5), MaxPool2D(3, 2), Dropout(0.1), Conv2D(16, 3), Dense(50), Dropout(0.5), Softmax(10))
    )
    assert cuts(model, 2) == {
        "conv2d1": Cut("rows", (7,)),
        "dropout1": Cut("rows", (7,)),
        "conv2d2": Cut("rows", (6,)),
        "dense1": Cut("units", (25,)),
        "dropout2": Cut("units", (25,)),
        "softmax1": Cut("units", (5,)),
    }


def test_distbeliefs_layers_by_rows() -> None:
    model = Model((40, 20, 1), (Local2D(4, 5), L2Pool2D(5, 1), LocalContrastNorm(5), Logistic(20)), "logistic")
    assert cuts(model, 2) == {
        "local2d1": Cut("rows", (18,)),
        "l2pool2d1": Cut("rows", (16,)),  # windows of 5 whose middle lies above row 18
        "local_contrast_norm1": Cut("rows", (16,)),
        "logistic1": Cut("units", (10,)),
    }


def test_maps_where_rows_are_fewer_than_two_for_each_partition() -> None:
    model = Model((8, 8, 4), (Conv2D(12, 3, padding="same"), Conv2D(12, 2), Dropout(0.1), Softmax(10)))
    found = cuts(model, 4)
    assert found["conv2d1"] == Cut("rows", (2, 4, 6))
    assert found["conv2d2"] == Cut("maps", (3, 6, 9)) == found["dropout1"]


def test_maps_where_they_cost_fewer_bytes() -> None:
    """Groups that read what their own partition made exchange nothing, rows would exchange a halo."""
    layers = (Conv2D(8, 3, padding="same"), Conv2D(8, 3, padding="same", groups=2), Dense(10), Softmax(10))
    model = Model((16, 16, 3), layers)
    assert cuts(model, 2)["conv2d2"] == Cut("rows", (8,))
    plan = make_plan(model, 2, {"conv2d1": "maps"})
    assert plan.stages[1].cut == Cut("maps", (4,)) and plan.edges(1) == ()


def test_pooling_that_would_leave_a_partition_nothing_is_cut_evenly() -> None:
    model = Model((12, 12, 4), (Local2D(4, 3), L2Pool2D(2), Softmax(10)))
    assert cuts(model, 2, {"local2d1": Cut("rows", (1,))})["l2pool2d1"] == Cut("rows", (2,))
    narrow = Model((9, 12, 8), (Local2D(8, 2), L2Pool2D(4), Softmax(10)))
    assert cuts(narrow, 4)["l2pool2d1"] == Cut("maps", (2, 4, 6))


def test_a_user_may_leave_a_partition_nothing_and_dropout_follows() -> None:
    model = Model((12, 12, 4), (Conv2D(4, 3), Dropout(0.2), Dense(9), Dropout(0.2), Softmax(10)))
    found = cuts(model, 3, {"conv2d1": Cut("rows", (0, 5)), "dense1": Cut(whole=1), "softmax1": Cut(whole=2)})
    assert found["dropout1"] == Cut("rows", (0, 5))
    assert found["dropout2"] == Cut(whole=1)
    assert found["softmax1"] == Cut(whole=2)


@pytest.mark.parametrize(
    ("head", "loss", "kind"),
    [
        (Softmax(4096), "cross_entropy", "gather"),
        (Softmax(4097), "cross_entropy", "exchange"),
        (Softmax(4097), "squared_error", "gather"),
        (Logistic(4097), "logistic", "separate"),
        (Dense(4097), "squared_error", "gather"),
        (Logistic(10), "logistic", "separate"),
    ],
)
def test_how_the_head_comes_to_its_error(head: Layer, loss: str, kind: str) -> None:
    model = Model((8,), (head,), loss)  # type: ignore[arg-type]
    assert make_plan(model, 2).head == kind
    name = {Softmax: "softmax1", Logistic: "logistic1", Dense: "dense1"}[type(head)]
    assert make_plan(model, 2, {name: Cut(whole=1)}).head == "whole" == make_plan(model, 1).head


MODEL = Model((28, 28, 1), (Conv2D(10, 5), MaxPool2D(2), Dense(40), Softmax(10)))


@pytest.mark.parametrize(
    ("partitions", "given", "message"),
    [
        (0, {}, "cluster.partitions: expected 1 to 256; found 0"),
        (257, {}, "cluster.partitions: expected 1 to 256; found 257"),
        (11, {}, "partition.softmax1: found 11 partitions for 10 units; expected at most 10; .* set whole = 0"),
        (2, {"dens1": "units"}, 'partition.dens1: no such layer. Did you mean "dense1"\\? Layers: conv2d1, dense1, so'),
        (2, {"maxpool2d1": "rows"}, "partition.maxpool2d1: it is cut together with conv2d1; give that one's cut"),
        (2, {"dense1": Cut("units", (41,))}, "partition.dense1: expected boundaries within its 40 units"),
        (1, {"dense1": "rows"}, "partition.dense1: found a cut by rows"),
    ],
)
def test_what_cannot_be_planned_is_refused(partitions: int, given: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_plan(MODEL, partitions, given)


def test_cuts_for_several_partitions_do_not_matter_to_one() -> None:
    assert make_plan(MODEL, 1, {"dense1": Cut("units", (3, 9))}) == make_plan(MODEL, 1)


@settings(deadline=None, max_examples=100, print_blob=True)
@given(models(), st.integers(1, 9))
def test_by_the_rules_every_partition_has_a_part_of_every_stage(model: Model, partitions: int) -> None:
    """Or there are too few rows and maps, and the message says so."""
    try:
        plan = make_plan(model, partitions)
    except ConfigurationError as error:
        assert f"found {partitions} partitions for" in str(error)
        return
    assert all(len(stage.holders) == partitions for stage in plan.stages)

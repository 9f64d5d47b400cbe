"""Tiles compute and exchange what arithmetic says; a grid of one column is what the runtime's plan says."""

from __future__ import annotations

from collections import Counter

import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, L2Pool2D, Local2D, LocalContrastNorm, Model, Softmax
from adamctl.model.layout import tensors_of
from adamctl.model.partition.cuts import Cut, even
from adamctl.model.partition.geometry import region_size
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.stages import stages_of
from adamctl.model.partition.work import work_of
from adamctl.model.scaling.tiles import Exchange, Grid, tile_plan

LOCAL = Model(
    (40, 40, 3),
    (Local2D(4, 5), L2Pool2D(3, stride=2), LocalContrastNorm(3), Local2D(2, 4), Dense(50), Softmax(10)),
)
DENSE = Model((30,), (Dense(64), Dense(48), Softmax(12)))


@pytest.mark.parametrize("model", [LOCAL, DENSE], ids=["local", "dense"])
@pytest.mark.parametrize("partitions", [2, 3, 4, 7])
def test_one_column_is_the_runtimes_plan(model: Model, partitions: int) -> None:
    cuts = {
        stage.name: Cut("rows", even(stage.output[0], partitions))
        for stage in stages_of(model)
        if len(stage.output) == 3
    }
    plan, tiles = make_plan(model, partitions, cuts), tile_plan(model, Grid(partitions, 1))
    for stage, tile in zip(plan.stages, tiles.stages, strict=True):
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        for edge in plan.edges(stage.index):
            sent[edge.producer] += edge.elements
            received[edge.consumer] += edge.elements
        assert tile.inputs.elements == max((*sent.values(), *received.values()), default=0), stage.name
        moved = max(region_size(part.inputs) + region_size(part.outputs) for part in stage.parts)
        assert moved <= tile.moved <= 1.1 * moved, stage.name
        held = [sum(map(region_size, part.parameters)) for part in stage.parts]
        assert tile.parameters == max(held), stage.name
        works = [work_of(plan, stage.index, p) for p in range(partitions)]
        if tile.products:
            assert tile.products == max(round(work.amount * work.forward_share) for work in works if work), stage.name
        assert tile.working == sum(work is not None for work in works)
    sent = max(plan.head_elements(p) for p in range(partitions)) * (partitions - 1)
    assert tiles.head == Exchange(sent, partitions - 1)


def test_one_tile_is_the_whole_network_and_exchanges_nothing() -> None:
    whole = tile_plan(LOCAL, Grid(1, 1))
    assert sum(stage.parameters for stage in whole.stages) == sum(tensor.size for tensor in tensors_of(LOCAL))
    assert all(stage.inputs == Exchange() for stage in whole.stages)
    assert whole.head == Exchange()


def test_an_inner_tile_reads_a_margin_from_eight_neighbours() -> None:
    model = Model((18, 18, 1), (Local2D(2, 1), Local2D(1, 5, padding="same"), Softmax(4)))
    found = tile_plan(model, Grid(3, 3)).stages[1]
    assert found.inputs == Exchange((10 * 10 - 6 * 6) * 2, 8)
    rows = tile_plan(model, Grid(9, 1)).stages[1]
    assert rows.inputs == Exchange(4 * 18 * 2, 2)  # two rows of each neighbour, all the way across


def test_before_a_dense_layer_all_get_everything() -> None:
    model = Model((12, 12, 1), (Local2D(3, 1), Dense(8), Softmax(4)))
    found = tile_plan(model, Grid(2, 2)).stages[1]
    assert found.inputs == Exchange(12 * 12 * 3 * 3 // 4, 3)


def test_more_tiles_exchange_less_each_than_rows() -> None:
    for side in (2, 3, 4):
        tiles, rows = (tile_plan(LOCAL, grid).stages[3].inputs for grid in (Grid(side, side), Grid(side * side, 1)))
        assert tiles.elements < rows.elements or side == 2


def test_more_rows_than_a_stage_has_leave_partitions_without_work() -> None:
    found = tile_plan(LOCAL, Grid(40, 1)).stages
    assert [stage.working for stage in found[:4]] == [36, 17, 17, 14]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model((8, 8, 1), (Conv2D(2, 3), Softmax(4))), "expected layers that share no weights"),
        (Model((8, 8, 1), (Local2D(2, (3, 2)), Softmax(4))), "expected a square kernel"),
        (Model((8, 9, 1), (Local2D(2, 3), Softmax(4))), "expected a square image"),
    ],
)
def test_what_tiles_cannot_price_is_refused(model: Model, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tile_plan(model, Grid(2, 2))

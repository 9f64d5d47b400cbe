"""Speed-ups of one model over machines, against closed forms; then DistBelief's figure 3 from what is assumed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adamctl.model.description import Dense, Local2D, Model, Softmax
from adamctl.model.layout import tensors_of
from adamctl.model.scaling.distbelief import MACHINE, curve, images, speech
from adamctl.model.scaling.speedup import ClusterMachine, batch_seconds, best_grid, slowest_of
from adamctl.model.scaling.tiles import Grid, tile_plan

DENSE = Model((32,), (Dense(64), Softmax(64)))
FAST = ClusterMachine(1e6, 1e15, 1e15)
BIG, SPEECH = images(36), speech()


def test_without_a_network_to_wait_for_n_machines_are_n_times_as_fast() -> None:
    for count in (1, 2, 8):
        seconds = batch_seconds(tile_plan(DENSE, Grid(count, 1)), FAST, 10)
        products = (2 * 32 * 64 + 3 * 64 * 64) * 10  # no errors go back before the first layer
        assert seconds == pytest.approx(products / count / 1e6)


def test_links_latency_and_messages_add_up() -> None:
    plan = tile_plan(DENSE, Grid(4, 1))
    alone = batch_seconds(plan, FAST, 10)
    slow = replace(FAST, link_bytes_per_s=1e4, latency_s=0.5, message_s=0.25)
    carried = (2 * (64 * 3 // 4) + 16 * 3) * 10 * 4 / 1e4  # outputs up, errors down, and outputs of the head
    assert batch_seconds(plan, slow, 10) == pytest.approx(alone + carried + 3 * (0.5 + 2 * 3 * 0.25))


def test_weights_that_come_from_memory_bind_small_batches() -> None:
    slow = replace(FAST, memory_bytes_per_s=1e3)
    model = Model((8, 8, 1), (Local2D(1, 3), Softmax(2)))
    one, ten = (batch_seconds(tile_plan(model, Grid(1, 1)), slow, batch) for batch in (1, 10))
    assert one < ten < 3 * one


@pytest.mark.parametrize(("count", "expected"), [(1, 1.0), (2, 1.0564), (10, 1.162), (100, 1.279)])
def test_the_slowest_of_many(count: int, expected: float) -> None:
    """Of normal numbers the largest are 1 + 0.1 x (0, 0.564, 1.539, 2.508); of log-normal ones a little larger."""
    assert slowest_of(count, 0.1) == pytest.approx(expected, abs=0.006)
    assert slowest_of(count, 0.0) == 1.0


def test_grids_are_as_square_as_can_be() -> None:
    assert [best_grid(count) for count in (1, 2, 12, 81, 7)] == [(1, 1), (2, 1), (4, 3), (9, 9), (7, 1)]


def test_the_networks_are_those_of_the_paper() -> None:
    assert sum(tensor.size for tensor in tensors_of(SPEECH)) == pytest.approx(42e6, rel=0.02)
    assert sum(tensor.size for tensor in tensors_of(BIG)) == pytest.approx(1.7e9, rel=0.02)


def test_speech_is_fastest_on_few_machines_and_the_largest_image_network_on_many() -> None:
    """The bands are set by the paper's curves (2.2 times at 8; more than 12 at 81), the assumptions are not."""
    found = dict(curve(SPEECH, range(1, 65)))
    best = max(found, key=found.__getitem__)
    assert 4 <= best <= 16
    assert found[best] < 4
    big = dict(curve(BIG, (16, 32, 64, 81, 100)))
    assert big[16] < big[32] < big[64] < big[81] < big[100]
    assert 8 <= big[81] <= 16


def test_what_the_bands_depend_on() -> None:
    """The place of the peak is the cost of a message; the height of both curves is the link's rate over the cores'."""
    free = dict(curve(SPEECH, (8, 16, 64), replace(MACHINE, message_s=0.0)))
    assert free[8] < free[16] < free[64]
    fast = replace(MACHINE, link_bytes_per_s=1.25e9)
    assert dict(curve(SPEECH, (8,), fast))[8] > 4
    assert dict(curve(BIG, (81,), fast))[81] > 16


def test_rows_alone_would_gain_far_less() -> None:
    tiles, rows = (dict(curve(BIG, (16, 81), by_rows=by_rows)) for by_rows in (False, True))
    assert rows[16] < tiles[16]
    assert rows[81] < 0.5 * tiles[81]

"""Block order: every example once a pass, by its position alone, out of the blocks of one window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import FILE_ORDER
from adamctl.roles.data.order.block_order import BlockOrder
from tests.roles.data.orders import in_file_order

seeds = st.integers(-(2**63), 2**64)
passes = st.integers(0, 10**6)
some_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=30)
ORDER_OF_SEED_7 = [7, 2, 8, 0, 9, 1, 3, 5, 6, 4]


def whole(order: BlockOrder, pass_number: int) -> list[int]:
    """All examples of a pass by their numbers in the files."""
    runs = order.find(pass_number, 0, order.examples)
    return [int(number) for run in runs for number in in_file_order(order, run)]


@settings(max_examples=40)
@given(some_lengths, seeds, passes, st.integers(1, 40))
def test_a_pass_visits_every_example_exactly_once(
    lengths: list[int], seed: int, pass_number: int, window_blocks: int
) -> None:
    order = BlockOrder(lengths, seed, window_blocks)
    pairs = [
        (int(block), int(index))
        for run in order.find(pass_number, 0, order.examples)
        for block, index in zip(run.blocks, run.indices, strict=True)
    ]
    assert sorted(pairs) == [(block, index) for block, length in enumerate(lengths) for index in range(length)]
    assert sorted(whole(order, pass_number)) == list(range(sum(lengths)))


@settings(max_examples=40)
@given(some_lengths, seeds, passes, st.integers(1, 40), st.data())
def test_a_position_alone_finds_its_examples(
    lengths: list[int], seed: int, pass_number: int, window_blocks: int, data: st.DataObject
) -> None:
    """Whatever was asked before, here of another pass and of the end: a run is taken up at any start."""
    everything = whole(BlockOrder(lengths, seed, window_blocks), pass_number)
    start = data.draw(st.integers(0, len(everything)))
    stop = data.draw(st.integers(start, len(everything)))
    order = BlockOrder(lengths, seed, window_blocks)
    order.find(pass_number + 1, 0, 1)
    order.find(pass_number, order.examples - 1, order.examples)
    found = [int(number) for run in order.find(pass_number, start, stop) for number in in_file_order(order, run)]
    assert found == everything[start:stop]


@settings(max_examples=40)
@given(seeds, passes)
def test_passes_and_seeds_differ(seed: int, pass_number: int) -> None:
    lengths = [10] * 12
    order = whole(BlockOrder(lengths, seed, 4), pass_number)
    assert whole(BlockOrder(lengths, seed, 4), pass_number) == order
    assert whole(BlockOrder(lengths, seed, 4), pass_number + 1) != order
    assert whole(BlockOrder(lengths, seed + 1, 4), pass_number) != order


def test_the_order_never_changes_between_releases() -> None:
    assert whole(BlockOrder([3, 4, 3], 7, 2), 0) == ORDER_OF_SEED_7
    assert whole(BlockOrder([3, 4, 3], 7, 2), FILE_ORDER) == list(range(10))


@settings(max_examples=40)
@given(some_lengths, seeds, passes, st.integers(1, 10))
def test_a_window_reads_its_own_blocks_alone(
    lengths: list[int], seed: int, pass_number: int, window_blocks: int
) -> None:
    order = BlockOrder(lengths, seed, window_blocks)
    runs = order.find(pass_number, 0, order.examples)
    assert [run.window for run in runs] == list(range(order.windows))
    for run in runs:
        assert set(run.blocks.tolist()) == set(order.blocks_of(pass_number, run.window).tolist())
        assert len(set(run.blocks.tolist())) <= window_blocks


def test_windows_of_a_pass_are_permuted_each_in_its_own_way() -> None:
    order = BlockOrder([64] * 4, 7, 1)
    inside = [run.indices.tolist() for run in order.find(0, 0, order.examples)]
    assert len({tuple(indices) for indices in inside}) == 4


def test_every_block_may_come_first_and_any_example_of_a_window() -> None:
    """Chi-squared over 4,000 passes, 11 degrees of freedom: above 40 once in 30,000 seeds, and the seed is fixed."""
    order = BlockOrder([3, 3, 3, 3], 7, 2)
    runs = [order.find(pass_number, 0, 1)[0] for pass_number in range(4000)]
    first = np.bincount([in_file_order(order, run)[0] for run in runs], minlength=12)
    assert ((first - 4000 / 12) ** 2 / (4000 / 12)).sum() < 40


def test_neighbours_are_as_far_apart_as_in_a_permutation_of_all() -> None:
    """The distance between neighbours has the distribution 1 - (1 - x)^2, but for 1 in W that share a block."""
    order = BlockOrder([50] * 640, 7, 16)
    distances = np.sort(np.abs(np.diff(whole(order, 0))) / order.examples)
    expected = 1 - (1 - distances) ** 2
    seen = np.arange(1, len(distances) + 1) / len(distances)
    assert np.abs(seen - expected).max() < 1 / 16 + 0.02


@pytest.mark.parametrize("window_blocks", [1, 3, 100])
def test_one_block_is_permuted_as_a_whole(window_blocks: int) -> None:
    order = BlockOrder([40], 7, window_blocks)
    assert order.windows == 1
    assert sorted(whole(order, 0)) == list(range(40)) != whole(order, 0)


def test_a_short_last_block_moves_with_the_others() -> None:
    order = BlockOrder([5, 5, 5, 5, 2], 7, 2)
    assert (order.examples, order.windows) == (22, 3)
    positions = {tuple(np.flatnonzero(np.array(whole(order, number)) >= 20)) for number in range(40)}
    assert len(positions) > 10


@pytest.mark.parametrize(
    ("lengths", "window_blocks", "found"),
    [([], 4, "found none"), ([3, 0, 2], 4, "found 0 in block 1"), ([3, -1], 4, "found -1 in block 1"), ([3], 0, "0")],
)
def test_what_cannot_be_ordered_is_refused(lengths: list[int], window_blocks: int, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        BlockOrder(lengths, 7, window_blocks)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11)])
def test_positions_outside_the_pass_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="expected 0 <= start <= stop <= 10"):
        BlockOrder([4, 6], 7).find(0, start, stop)


def test_no_examples_are_no_runs_and_no_window_lies_past_the_last() -> None:
    order = BlockOrder([4, 6], 7)
    assert order.find(0, 10, 10) == []
    with pytest.raises(ValueError, match="found 1"):
        order.blocks_of(0, 1)

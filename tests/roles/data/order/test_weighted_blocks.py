"""Weighted block order: as often as weights say, by position alone, out of the blocks of one window."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.roles.data.core import FILE_ORDER
from adamctl.roles.data.order.block_order import BlockOrder
from adamctl.roles.data.order.sampling import ONE, expected_draws
from adamctl.roles.data.order.weighted_blocks import WeightedBlockOrder
from tests.roles.data.orders import in_file_order

seeds = st.integers(0, 2**63)
passes = st.integers(0, 10**6)
some_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=30)
windows = st.integers(1, 40)


def made(lengths: list[int], seed: int, window_blocks: int, classes: int = 3) -> WeightedBlockOrder:
    """Labels and weights of three decades, some of them 0, from the lengths."""
    examples = sum(lengths)
    random = np.random.default_rng(examples)
    labels = random.integers(0, classes, examples).astype(np.int32)
    weights = 10 ** random.uniform(-1.5, 1.5, examples) * (random.random(examples) < 0.8)
    weights[0] = 1.0
    return WeightedBlockOrder(lengths, seed, labels, weights, window_blocks)


def numbered(order: BlockOrder, pass_number: int, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    """(number in the files, how often before) of what a pass has at some positions."""
    runs = order.find(pass_number, start, order.examples if stop is None else stop)
    found = []
    for run in runs:
        assert run.repeats is not None
        found += zip(in_file_order(order, run).tolist(), run.repeats.tolist(), strict=True)
    return found


@settings(max_examples=60, deadline=None)
@given(some_lengths, seeds, passes, windows)
def test_an_example_comes_as_often_as_its_weight_says(
    lengths: list[int], seed: int, pass_number: int, window_blocks: int
) -> None:
    order = made(lengths, seed, window_blocks)
    drawn = numbered(order, pass_number)
    assert len(drawn) == order.examples
    counts = np.bincount([number for number, _ in drawn], minlength=order.examples)
    assert np.all(counts >= order._expected // ONE) and np.all(counts <= -(-order._expected // ONE))
    assert sorted(drawn) == [(number, k) for number, count in enumerate(counts) for k in range(count)]


@settings(max_examples=40, deadline=None)
@given(some_lengths, seeds, passes, windows, st.data())
def test_a_position_alone_finds_its_examples(
    lengths: list[int], seed: int, pass_number: int, window_blocks: int, data: st.DataObject
) -> None:
    everything = numbered(made(lengths, seed, window_blocks), pass_number)
    start = data.draw(st.integers(0, len(everything)))
    stop = data.draw(st.integers(start, len(everything)))
    order = made(lengths, seed, window_blocks)
    order.find(pass_number + 1, 0, 1)
    assert numbered(order, pass_number, start, stop) == everything[start:stop]


@settings(max_examples=40, deadline=None)
@given(some_lengths, seeds, passes, windows)
def test_a_window_has_examples_of_its_blocks_alone(
    lengths: list[int], seed: int, pass_number: int, window_blocks: int
) -> None:
    order = made(lengths, seed, window_blocks)
    for run in order.find(pass_number, 0, order.examples):
        assert set(run.blocks.tolist()) <= set(order.blocks_of(pass_number, run.window).tolist())
        end = order.start(pass_number, run.window + 1) if run.window + 1 < order.windows else order.examples
        assert len(run.blocks) == end - order.start(pass_number, run.window)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(5, 40), min_size=2, max_size=20), seeds, passes, st.integers(1, 8))
def test_a_class_comes_in_a_window_as_often_as_its_examples_there_say(
    lengths: list[int], seed: int, pass_number: int, window_blocks: int
) -> None:
    order = made(lengths, seed, window_blocks)
    firsts = np.cumsum(lengths) - lengths
    for run in order.find(pass_number, 0, order.examples):
        blocks = order.blocks_of(pass_number, run.window)
        there = np.concatenate([np.arange(firsts[one], firsts[one] + lengths[one]) for one in blocks])
        for label in range(3):
            exact = int(order._expected[there[order._labels[there] == label]].sum())
            count = int((order._labels[in_file_order(order, run)] == label).sum())
            assert exact // ONE <= count <= -(-exact // ONE)


def test_classes_are_balanced_in_every_window() -> None:
    """One class has a tenth of the examples: half of a pass, and of each of its windows, to a few examples."""
    labels = (np.arange(4000) % 10 == 0).astype(np.int32)
    order = WeightedBlockOrder([50] * 80, 7, labels, np.where(labels, 9.0, 1.0), 8)
    for run in order.find(3, 0, 4000):
        of_rare = labels[in_file_order(order, run)].mean()
        assert abs(of_rare - 0.5) < 0.01
    neighbours = labels[[number for number, _ in numbered(order, 3)]]
    assert 0.45 < (np.diff(neighbours) != 0).mean() < 0.55  # and mixed within


def test_equal_weights_draw_each_example_once() -> None:
    order = WeightedBlockOrder([7, 5, 9, 3], 7, np.zeros(24, np.int32), np.full(24, 1 / 7), 2)
    assert sorted(numbered(order, 4)) == [(number, 0) for number in range(24)]


def test_passes_differ_and_the_order_of_files_is_that_of_the_files() -> None:
    order = made([10] * 20, 7, 4)
    assert numbered(order, 0) != numbered(order, 1)
    (run,) = made([10] * 20, 7, 40).find(FILE_ORDER, 0, 200)
    assert run.indices.tolist() == [*range(10)] * 20 and run.repeats is None
    assert order._expected.tolist() == expected_draws(order._expected / ONE).tolist()


def test_an_example_of_a_huge_weight_fills_its_window() -> None:
    weights = np.full(100, 1e-9)
    weights[42] = 1.0
    order = WeightedBlockOrder([10] * 10, 7, np.zeros(100, np.int32), weights, 2)
    assert numbered(order, 0).count((42, 0)) == 1
    assert {number for number, _ in numbered(order, 0)} == {42}

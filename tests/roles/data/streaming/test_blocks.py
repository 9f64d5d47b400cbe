"""The blocks of a source and of each split: every example in one of them, the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import FILE_ORDER
from adamctl.roles.data.readers.source import SEQUENTIAL_BYTES_FOR_BLOCKS, by_blocks
from adamctl.roles.data.streaming.blocks import (
    block_lengths,
    sample_of,
    shared_out,
    split_blocks,
    window_problem,
)
from tests.roles.data.streaming.block_sources import BlockSource, NumberedSource


def test_a_source_that_says_nothing_has_blocks_of_1024() -> None:
    assert block_lengths(NumberedSource(2500), "train").tolist() == [1024, 1024, 452]
    assert block_lengths(NumberedSource(1024), "train").tolist() == [1024]
    assert block_lengths(NumberedSource(5), "test").tolist() == []


def test_a_source_says_its_own_blocks() -> None:
    assert block_lengths(BlockSource(20), "train").tolist() == [5, 9, 2, 4]


def test_blocks_without_examples_of_a_split_are_left_out() -> None:
    source = BlockSource(10)
    source.blocks = lambda split: np.array([5, 0, 5])  # type: ignore[method-assign]
    assert block_lengths(source, "train").tolist() == [5, 5]


@pytest.mark.parametrize("lengths", [[5], [5, -1, 6], [11], [[10]]])
def test_blocks_that_are_not_all_examples_are_refused(lengths: list[int]) -> None:
    source = BlockSource(10)
    source.blocks = lambda split: np.array(lengths)  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="expected blocks of 10 examples together"):
        block_lengths(source, "train")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.floats(0, 0.99), st.integers(0, 2**63), st.integers(1, 9), st.booleans())
def test_every_example_is_in_one_split_and_as_many_held_out_as_asked(
    examples: int, share: float, seed: int, window_blocks: int, own: bool
) -> None:
    source = BlockSource(examples, 7) if own else NumberedSource(examples, 7)
    splits = split_blocks(source, share, seed, window_blocks)
    assert splits["validation"].examples == round(examples * share)
    found = [
        splits[split].draws(number, 0, splits[split].examples, examples)
        for split in ("train", "validation")
        if splits[split].examples
        for number in (0,)
    ]
    assert sorted(np.concatenate(found).tolist()) == list(range(examples))
    assert splits["test"].draws(FILE_ORDER, 0, 7, 7).tolist() == list(range(7))
    for split in splits.values():
        if split.examples:
            in_files = split.members()
            assert (np.diff(in_files) > 0).all()
    numbers = np.concatenate([split.numbers for split in splits.values()])
    assert numbers.tolist() == list(range(len(numbers)))


def test_whole_blocks_are_held_out_and_the_seed_draws_which() -> None:
    source = NumberedSource(100 * 1024)
    first, second = (split_blocks(source, 0.2, seed, 64)["validation"] for seed in (1, 2))
    assert set(first.lengths.tolist()) == {1024} and len(first.lengths) == 20
    assert first.starts.tolist() != second.starts.tolist()
    again = split_blocks(source, 0.2, 1, 64)["validation"]
    assert again.starts.tolist() == first.starts.tolist()


def test_places_of_a_range_name_the_blocks_of_the_set_and_where_their_window_begins() -> None:
    splits = split_blocks(BlockSource(100, 30), 0.1, 7, 3)
    for name, split in splits.items():
        places = split.find(4, 0, split.examples)
        assert sum(len(place.blocks) for place in places) == split.examples
        assert [place.window for place in places] == list(range(split.windows(4)))
        at = 0
        for place in places:
            blocks, examples = split.window(4, place.window)
            assert place.first == at and examples == len(place.blocks)
            assert set(place.blocks.tolist()) == set(blocks.tolist()), name
            at += examples


def test_in_the_order_of_the_files_one_block_at_a_time_is_needed() -> None:
    split = split_blocks(BlockSource(100), 0, 7, 64)["train"]
    assert split.windows(FILE_ORDER) == len(split.lengths) and split.windows(0) == 1


def test_auto_depends_on_the_number_of_examples_and_for_sequential_sources_on_their_size() -> None:
    few = NumberedSource(2000)
    assert not by_blocks(DataConfig(), few) and by_blocks(DataConfig(order="blocks"), few)
    many = NumberedSource(4_000_000)
    assert by_blocks(DataConfig(), many) and not by_blocks(DataConfig(order="examples"), many)
    assert by_blocks(DataConfig(sampling="balanced"), many)
    assert not by_blocks(DataConfig(validation=0.1, stratify=True), many)
    large = BlockSource(2000)
    large.example_shape = (SEQUENTIAL_BYTES_FOR_BLOCKS // 4 // 2000 + 1,)  # type: ignore[assignment]
    assert by_blocks(DataConfig(), large)
    large.sequential = False
    assert not by_blocks(DataConfig(), large)
    small = BlockSource(2000)
    assert not by_blocks(DataConfig(), small)
    small.unpacked_bytes = SEQUENTIAL_BYTES_FOR_BLOCKS  # type: ignore[attr-defined]
    assert by_blocks(DataConfig(), small), "images, say, that are larger in their files"


def test_what_is_held_out_together_is_never_cut_by_blocks() -> None:
    source = BlockSource(100)
    source.groups = lambda split: np.arange(100) // 10  # type: ignore[attr-defined]
    source.example_shape = (10**8,)  # type: ignore[assignment]
    assert by_blocks(DataConfig(), source) and not by_blocks(DataConfig(validation=0.1), source)
    with pytest.raises(ConfigurationError, match=r'has examples that are held out together.*set it to "examples"'):
        split_blocks(source, 0.1, 7, 4)


def test_servers_share_out_blocks_or_files_that_are_fetched_whole() -> None:
    source = BlockSource(2300, 20)
    for split in split_blocks(source, 0.1, 7, 4).values():
        assert shared_out(source, split).tolist() == split.numbers.tolist()
    files = np.full(100, 23)  # each of 4 blocks
    source.fetched = lambda split: files if split == "train" else None  # type: ignore[attr-defined]
    splits = split_blocks(source, 0.1, 7, 4)
    for name in ("train", "validation"):
        assert shared_out(source, splits[name]).tolist() == (splits[name].starts // 23).tolist()
    assert shared_out(source, splits["test"]).tolist() == splits["test"].numbers.tolist()


def test_statistics_of_a_sequential_source_are_of_few_blocks() -> None:
    source = BlockSource(5000)
    split = split_blocks(source, 0.3, 1, 4)["train"]
    evenly = sample_of(split, 100, sequential=False)
    ours = set(split.members().tolist())
    assert 50 <= len(evenly) <= 100 and (np.diff(evenly) > 0).all() and set(evenly.tolist()) <= ours
    some = sample_of(split, 100, sequential=True)
    blocks = np.searchsorted(np.cumsum(block_lengths(source, "train")), some, side="right")
    assert len(set(blocks.tolist())) <= 64 and set(some.tolist()) <= ours and 32 <= len(some) <= 100
    assert (np.diff(some) > 0).all()
    assert len(sample_of(split, 10**6, sequential=True)) == split.examples


def test_a_window_that_does_not_fit_is_refused_with_what_would() -> None:
    assert window_problem([10, 20, 30], 30, 3, "x") is None
    assert window_problem([], 0, 3, "x") is None
    problem = window_problem([10, 20, 30], 25, 3, "x")
    assert problem is not None and "data.window_blocks = 3" in problem and "30 bytes" in problem
    assert "set it to at most 2" in problem
    problem = window_problem([10], 5, 3, "x")
    assert problem is not None and "take smaller blocks" in problem

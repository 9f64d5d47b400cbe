"""Sets served out of less memory than they need: the right examples, each read once a pass, by any threads."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.errors import DamagedDataError
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.streaming import windows
from adamctl.roles.data.streaming.blocks import split_blocks
from adamctl.roles.data.streaming.windows import WindowCache
from tests.roles.data.streaming.block_sources import BlockSource, NumberedSource

EXAMPLE_BYTES = 12


class Set:
    """A set of 230 examples in 40 blocks, 8 to a window, within so many bytes."""

    def __init__(self, budget_bytes: int, source: NumberedSource | None = None, share: float = 0.0) -> None:
        self.source = source or BlockSource(230, 40)
        self.splits = split_blocks(self.source, share, 7, 8)
        self.cache = WindowCache(self.source, self.splits, 8, budget_bytes)

    def read(self, wanted: Range, chosen: NDArray[np.int64] | None = None) -> list[int]:
        count = wanted.stop - wanted.start if chosen is None else len(chosen)
        out = np.empty((count, 3), np.float32)
        self.cache.gather(wanted, out, chosen)
        assert (out == out[:, :1]).all()
        return [int(value) for value in out[:, 0]]

    def expected(self, wanted: Range) -> list[int]:
        split = self.splits[wanted.split]
        extra = 1_000_000 if wanted.split == "test" else 0
        return [int(one) + extra for one in split.draws(wanted.pass_number, wanted.start, wanted.stop, 0)]

    def a_pass(self, number: int, split: str = "train", step: int = 11, *, ahead: bool = True) -> None:
        for start in range(0, self.splits[split].examples, step):
            wanted = Range(split, number, start, min(start + step, self.splits[split].examples))
            assert self.read(wanted) == self.expected(wanted)
            for task in self.cache.ahead_tasks() if ahead else ():
                task()


WINDOW_BYTES = 8 * 9 * EXAMPLE_BYTES


@pytest.mark.parametrize("budget", [0, 100, WINDOW_BYTES, 2 * WINDOW_BYTES, 10**6])
@pytest.mark.parametrize("own_blocks", [False, True])
def test_whatever_memory_there_is_the_same_examples_come_out(budget: int, own_blocks: bool) -> None:
    made = Set(budget, BlockSource(230, 40) if own_blocks else NumberedSource(2300, 40))
    for number in (0, 1, FILE_ORDER):
        made.a_pass(number, step=11 if own_blocks else 101)
    made.a_pass(FILE_ORDER, "test")
    assert made.cache.held_bytes <= made.cache.size_bytes <= budget + 4 * 10**3


def test_each_example_is_read_once_a_pass() -> None:
    made = Set(2 * WINDOW_BYTES)
    for number in range(3):
        made.a_pass(number)
    numbers = {index for _, index in made.source.reads}
    assert numbers == set(range(230))
    # and those of one window a fourth time, which was read ahead for the pass that would come next
    assert all(count <= 4 for count in made.source.reads.values())
    assert sum(made.source.reads.values()) <= 3 * 230 + 8 * 9
    assert made.cache.loaded_examples == sum(made.source.reads.values())


def test_a_set_that_fits_is_read_once() -> None:
    made = Set(10**6, share=0.2)
    for number in range(3):
        made.a_pass(number)
        made.a_pass(FILE_ORDER, "validation")
        made.a_pass(FILE_ORDER, "test")
    assert set(made.source.reads.values()) == {1} and len(made.source.reads) == 270


def test_a_pass_taken_up_in_its_middle_reads_that_window_alone() -> None:
    made = Set(2 * WINDOW_BYTES)
    wanted = Range("train", 2, 120, 131)
    assert made.read(wanted) == made.expected(wanted)
    places = made.splits["train"].find(2, 120, 131)
    blocks = {int(block) for place in places for block in made.splits["train"].window(2, place.window)[0]}
    assert len(made.source.reads) <= sum(int(made.splits["train"].lengths[block]) for block in blocks)


def test_validation_in_the_midst_of_a_pass_takes_nothing_from_it() -> None:
    made = Set(2 * WINDOW_BYTES + 4 * 9 * EXAMPLE_BYTES, share=0.2)
    for start in range(0, 88, 11):
        made.read(Range("train", 0, start, start + 11))
        for task in made.cache.ahead_tasks():
            task()
    made.a_pass(FILE_ORDER, "validation")
    for start in range(88, made.splits["train"].examples, 11):
        made.read(Range("train", 0, start, min(start + 11, made.splits["train"].examples)))
    train = set(made.splits["train"].members().tolist())
    assert {made.source.reads["train", index] for index in train} == {1}


@pytest.mark.parametrize("budget", [0, WINDOW_BYTES, 2 * WINDOW_BYTES, 4 * WINDOW_BYTES])
def test_many_threads_at_many_positions_get_their_own_examples(budget: int) -> None:
    made = Set(budget, BlockSource(230, 40), share=0.1)
    ranges = [
        Range(split, number, start, min(start + 17, made.splits[split].examples))
        for number in (0, 1, FILE_ORDER)
        for split in ("train", "validation", "test")
        for start in range(0, made.splits[split].examples, 17)
    ]

    def one(wanted: Range) -> bool:
        right = made.read(wanted) == made.expected(wanted)
        for task in made.cache.ahead_tasks():
            task()
        return right

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(one, ranges, timeout=60))
    assert made.cache._memory.used_frames <= made.cache._memory.frames_max
    assert all(block.pins == 0 for block in made.cache._memory._blocks.values())


def test_one_thread_waits_for_what_another_one_reads() -> None:
    """Two ask for the same window at once: together they read each of its examples once."""
    for _ in range(20):
        made = Set(4 * WINDOW_BYTES)
        gate = threading.Barrier(2)

        def one(start: int, made: Set = made, gate: threading.Barrier = gate) -> bool:
            gate.wait(20)
            wanted = Range("train", 0, start, start + 20)
            return made.read(wanted) == made.expected(wanted)

        with ThreadPoolExecutor(2) as pool:
            assert all(pool.map(one, (0, 20), timeout=60))
        assert set(made.source.reads.values()) == {1}


def test_where_blocks_take_long_ranges_do_not_wait_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when images of a first window are decoded: each range reads a block more, and alone what is not there."""
    monkeypatch.setattr(windows, "PATIENCE_S", 0.0)
    monkeypatch.setattr(BlockSource, "sequential", False)
    made = Set(4 * WINDOW_BYTES)
    for start in range(0, 40, 8):
        wanted = Range("train", 0, start, start + 8)
        assert made.read(wanted) == made.expected(wanted)
        assert made.cache._memory.used_frames <= 9 * (start // 8 + 1)
    for start in range(40, 230, 10):
        wanted = Range("train", 0, start, start + 10)
        assert made.read(wanted) == made.expected(wanted)
    assert sum(made.source.reads.values()) < 2 * 230
    assert all(block.pins == 0 for block in made.cache._memory._blocks.values())


def test_where_examples_cost_as_much_as_their_blocks_none_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "PATIENCE_S", 0.0)
    made = Set(4 * WINDOW_BYTES)
    made.a_pass(0, ahead=False)
    assert made.source.calls == 40 and set(made.source.reads.values()) == {1}


def test_only_the_chosen_examples_of_a_range_are_written() -> None:
    made = Set(2 * WINDOW_BYTES)
    wanted = Range("train", 0, 30, 80)
    chosen = np.array([0, 3, 4, 30, 49])
    assert made.read(wanted, chosen) == [made.expected(wanted)[one] for one in chosen]
    assert made.read(wanted, np.array([], np.int64)) == []


def test_a_server_that_owns_some_blocks_reads_no_others() -> None:
    """Two of them; together they read the set once a pass, and what they keep adds up."""
    found: list[set[int]] = []
    for mine in (0, 1):
        made = Set(2 * WINDOW_BYTES, BlockSource(230))
        made.cache.own(lambda blocks, mine=mine: blocks[blocks % 2 == mine])  # type: ignore[misc]
        for start in range(0, 230, 10):
            wanted = Range("train", 0, start, start + 10)
            places = made.splits["train"].find(0, start, start + 10)
            owned = np.flatnonzero(np.concatenate([place.blocks for place in places]) % 2 == mine)
            assert made.read(wanted, owned) == [made.expected(wanted)[one] for one in owned]
            for task in made.cache.ahead_tasks():
                task()
        found.append({index for _, index in made.source.reads})
        assert sum(made.source.reads.values()) <= len(found[-1]) + 8 * 9  # a window ahead, for the pass to come
    assert found[0] | found[1] == set(range(230)) and not found[0] & found[1]


def test_a_damaged_example_is_named_and_the_rest_is_served() -> None:
    made = Set(4 * WINDOW_BYTES)
    wanted = Range("train", 0, 0, 20)
    made.source.damaged.add(made.expected(wanted)[5])
    for task in made.cache.ahead_tasks():
        task()
    for _ in range(2):
        with pytest.raises(DamagedDataError, match="is damaged"):
            made.read(wanted)
    made.source.damaged.clear()
    assert made.read(wanted) == made.expected(wanted)
    assert all(block.pins == 0 for block in made.cache._memory._blocks.values())


def test_values_that_are_not_finite_are_refused() -> None:
    class Broken(NumberedSource):
        def load(self, split: object, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:  # type: ignore[override]
            out[...] = np.where(indices == 7, np.nan, 1.0)[:, None]

    with pytest.raises(DamagedDataError, match="found nan in example 7"):
        Set(10**6, Broken(200)).a_pass(0)


def test_what_is_read_ahead_is_there_when_it_is_asked_for() -> None:
    made = Set(4 * WINDOW_BYTES)
    made.read(Range("train", 0, 0, 11))
    tasks = made.cache.ahead_tasks()
    assert len(tasks) == 8 and made.cache.ahead_tasks() == []
    for task in tasks:
        task()
    calls = made.source.calls
    first = made.splits["train"].find(0, 0, 230)[1].first
    wanted = Range("train", 0, first, first + 11)
    assert made.read(wanted) == made.expected(wanted) and made.source.calls == calls


def test_blocks_of_bytes_are_held_as_bytes() -> None:
    class Bytes(NumberedSource):
        dtype = np.dtype(np.uint8)  # type: ignore[assignment]

    made = Set(10**6, Bytes(200))
    out = np.empty((10, 3), np.uint8)
    made.cache.gather(Range("train", 0, 0, 10), out)
    assert out[:, 0].tolist() == made.expected(Range("train", 0, 0, 10))
    assert Counter(made.source.reads.values()) == {1: 200} and 600 <= made.cache.held_bytes <= 640

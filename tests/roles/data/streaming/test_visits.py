"""Data sets in block order as a data server has them: out of little memory, with what every data set has."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.order.ownership import Share
from adamctl.roles.data.preparing import Asked, ReadyRange
from adamctl.roles.data.readers.source import TableSource
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.store import DataStore
from adamctl.roles.data.streaming.visits import BlockVisits
from tests.roles.data.orders import whole_pass
from tests.roles.data.streaming.block_sources import BlockSource, NumberedSource

WAIT_S = 20
EXAMPLES, SIDE = 8192 + 300, 6
IMAGE_BYTES = SIDE * SIDE
CONFIG = DataConfig(format="npy", source="set", scale="none", order="blocks", window_blocks=1, memory_share=0.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An .npy set of 8,492 images; the first two bytes of each are its number, and so is its label modulo 10."""
    images = np.zeros((EXAMPLES, SIDE, SIDE), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(EXAMPLES), 256)
    (tmp_path / "set").mkdir()
    np.save(tmp_path / "set" / "x_train.npy", images)
    np.save(tmp_path / "set" / "y_train.npy", np.arange(EXAMPLES) % 10)
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[DataStore]:
    """One with room for a quarter of the set: two windows."""
    made = DataStore([str(folder)], threads=2, ahead=3, memory_bytes=4 * 1024 * IMAGE_BYTES + 2 * 4 * EXAMPLES)
    yield made
    made.close()


def read(store: DataStore, dataset: OpenDataSet, wanted: Range, share: Share | None = None) -> list[int]:
    """Returns the numbers of the examples of a range, after checking their labels."""
    results: queue.Queue[ReadyRange | Exception] = queue.Queue()
    result: ReadyRange | Exception | None = store.read(dataset.name, Asked(wanted, share), results.put)
    if result is None:
        result = results.get(timeout=WAIT_S)
    if isinstance(result, Exception):
        raise result
    count = result.examples
    images = np.frombuffer(result.body, np.uint8, count * IMAGE_BYTES).reshape(count, IMAGE_BYTES)
    labels = np.frombuffer(result.body, np.int32, count, result.layout.labels_offset)
    numbers = images[:, 0].astype(np.int64) * 256 + images[:, 1]
    assert (numbers % 10 == labels).all()
    result.release()
    return numbers.tolist()


def a_pass(store: DataStore, dataset: OpenDataSet, number: int, split: str = "train") -> list[int]:
    examples = dataset.examples[split]
    return [
        one
        for start in range(0, examples, 250)
        for one in read(store, dataset, Range(split, number, start, min(start + 250, examples)))
    ]


def test_a_set_of_four_times_its_memory_is_served_whole_each_pass_and_each_byte_read_once(store: DataStore) -> None:
    dataset = store.open(CONFIG, (SIDE, SIDE, 1), 7)
    first, second = a_pass(store, dataset, 0), a_pass(store, dataset, 1)
    assert sorted(first) == sorted(second) == list(range(EXAMPLES)) and first != second
    (status,) = store.status()["datasets"]
    most = 2 * EXAMPLES * IMAGE_BYTES + 2 * 1024 * IMAGE_BYTES  # what may be read ahead of the pass to come
    assert 2 * EXAMPLES * IMAGE_BYTES - 2048 * IMAGE_BYTES <= status["read_bytes"] <= most
    assert status["cache"] == {"train": "windows", "test": "windows"}
    assert status["held_bytes"] <= store.memory_bytes // 2


def test_two_servers_of_different_memory_have_the_same_order(store: DataStore, folder: Path) -> None:
    other = DataStore([str(folder)], threads=1, memory_bytes=10**8)
    config = msgspec.structs.replace(CONFIG, validation=0.2)
    one, two = store.open(config, (SIDE, SIDE, 1), 7), other.open(config, (SIDE, SIDE, 1), 7)
    assert one.name == two.name and one.examples == two.examples
    for wanted in (Range("train", 5, 1000, 1200), Range("validation", FILE_ORDER, 0, 200)):
        assert read(store, one, wanted) == read(other, two, wanted)
        np.testing.assert_array_equal(one.visits.blocks_of(wanted), two.visits.blocks_of(wanted))
    other.close()


def test_two_servers_share_a_set_out_and_neither_reads_what_the_other_owns(store: DataStore, folder: Path) -> None:
    made = [DataStore([str(folder)], threads=2, ahead=0, memory_bytes=store.memory_bytes) for _ in range(2)]
    names = ("data-1", "data-2")
    opened = [one.open(CONFIG, (SIDE, SIDE, 1), 7) for one in made]
    seen: list[list[int]] = [[], []]
    for start in range(0, EXAMPLES, 250):
        wanted = Range("train", 0, start, min(start + 250, EXAMPLES))
        for number, (one, dataset) in enumerate(zip(made, opened, strict=True)):
            seen[number] += read(one, dataset, wanted, Share(names, number))
    assert sorted(seen[0] + seen[1]) == list(range(EXAMPLES)) and min(map(len, seen)) >= 1024
    for dataset, numbers in zip(opened, seen, strict=True):
        ahead = 2 * 1024 * IMAGE_BYTES
        assert len(numbers) * IMAGE_BYTES <= dataset.read_bytes <= len(numbers) * IMAGE_BYTES + ahead
    for one in made:
        one.close()


def test_a_server_that_is_left_alone_keeps_what_the_other_one_owned() -> None:
    """It is read from without a share then, by a reader that knows of no other one."""
    source = BlockSource(200)
    config = msgspec.structs.replace(CONFIG, window_blocks=4)
    dataset, names = OpenDataSet("set", config, source, 7, 10**6), ("data-1", "data-2")
    wanted = Range("train", 0, 0, 200)
    positions = dataset.positions_of(wanted, Share(names, 0))
    gather(dataset, wanted, positions)
    assert 0 < len(positions) < 200 and sum(source.reads.values()) == len(positions)
    gather(dataset, wanted._replace(pass_number=1))
    assert set(source.reads.values()) == {1}
    gather(dataset, wanted._replace(pass_number=2))
    assert set(source.reads.values()) == {1}, "all of it is held"


def test_who_takes_the_place_of_another_one_for_one_range_owns_no_more_for_that() -> None:
    source = BlockSource(200)
    dataset, names = OpenDataSet("set", CONFIG, source, 7, 10**6), ("data-1", "data-2")
    wanted = Range("train", 0, 0, 200)
    mine = dataset.positions_of(wanted, Share(names, 0))
    others = np.setdiff1d(np.arange(200), mine).astype(np.int32)
    positions = dataset.positions_of(wanted, Share(names[:1], 0, others.tobytes()))
    assert positions.tolist() == others.tolist()
    for _ in range(2):
        gather(dataset, wanted, mine)
        gather(dataset, wanted, positions)
    assert {source.reads["train", one] for one in whole_pass(dataset, "train", 0)[mine].tolist()} == {1}
    assert {source.reads["train", one] for one in whole_pass(dataset, "train", 0)[others].tolist()} == {2}


def gather(dataset: OpenDataSet, wanted: Range, positions: NDArray[np.int64] | None = None) -> None:
    """Reads a range of a `BlockSource`, and checks what comes."""
    count = wanted.stop - wanted.start if positions is None else len(positions)
    images, labels = np.empty((count, 3), np.float32), np.empty(count, np.int32)
    dataset.gather(wanted, images, labels, positions)
    expected = whole_pass(dataset, wanted.split, wanted.pass_number)[wanted.start : wanted.stop]
    assert images[:, 0].tolist() == (expected if positions is None else expected[positions]).tolist()


def test_numbers_that_are_not_finite_are_refused_also_where_the_source_has_them_in_memory() -> None:
    values, labels = np.ones((10, 4), np.float32), np.zeros(10, np.int32)
    values[7, 1] = np.nan
    source = TableSource(
        "npz",
        {"train": (values, labels), "test": (values[:0], labels[:0])},
        value_max=1.0,
        stored_bytes=0,
        input_shape=(4,),
        origin="x",
    )
    dataset = OpenDataSet("x", CONFIG, source, 7, 10**6)
    for _ in range(2):
        with pytest.raises(DamagedDataError, match="x: train: expected finite numbers, found nan in example 7"):
            dataset.gather(Range("train", 0, 0, 10), np.empty((10, 4), np.float32), np.empty(10, np.int32))


def test_held_out_examples_are_in_no_pass_and_come_in_the_order_of_the_files(store: DataStore) -> None:
    dataset = store.open(msgspec.structs.replace(CONFIG, validation=0.3), (SIDE, SIDE, 1), 7)
    held_out = a_pass(store, dataset, FILE_ORDER, "validation")
    assert held_out == sorted(held_out) and len(held_out) == round(0.3 * EXAMPLES)
    assert sorted(held_out + a_pass(store, dataset, 0)) == list(range(EXAMPLES))


def test_a_window_that_does_not_fit_the_share_is_refused_with_what_would(store: DataStore) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.window_blocks = 64: .* set it to at most 2, raise data"):
        store.open(msgspec.structs.replace(CONFIG, window_blocks=64), (SIDE, SIDE, 1), 7)


def test_a_second_set_that_finds_the_memory_taken_is_served_from_the_files(store: DataStore) -> None:
    first, second = store.open(CONFIG, (SIDE, SIDE, 1), 7), store.open(CONFIG, (SIDE, SIDE, 1), 8)
    assert sorted(a_pass(store, first, 0)) == sorted(a_pass(store, second, 0)) == list(range(EXAMPLES))
    assert second.visits.held_bytes <= 1024 * IMAGE_BYTES
    # Example by example: no byte is read more than once for that.
    assert second.read_bytes <= EXAMPLES * IMAGE_BYTES + 2 * 1024 * IMAGE_BYTES


def test_an_order_that_is_chosen_is_the_order(store: DataStore) -> None:
    """And `auto` leaves a small set as it always was."""
    shape = (SIDE, SIDE, 1)
    by_example = store.open(msgspec.structs.replace(CONFIG, order="examples", window_blocks=64), shape, 7)
    auto = store.open(msgspec.structs.replace(CONFIG, order="auto"), shape, 7)
    blocks = store.open(CONFIG, shape, 7)
    assert not isinstance(auto.visits, BlockVisits) and isinstance(blocks.visits, BlockVisits)
    np.testing.assert_array_equal(whole_pass(by_example, "train", 3), whole_pass(auto, "train", 3))
    assert whole_pass(blocks, "train", 3).tolist() != whole_pass(auto, "train", 3).tolist()


def test_values_in_memory_are_copied_and_not_held_again() -> None:
    class Resident(NumberedSource):
        resident = True

    visits = BlockVisits(CONFIG, Resident(3000), 7, 10**6)
    out = np.empty((50, 3), np.float32)
    wanted = Range("train", 1, 100, 150)
    visits.gather(wanted, out)
    np.testing.assert_array_equal(out[:, 0], visits.draws(wanted))
    visits.gather(wanted, out[:2], np.array([3, 9]))
    np.testing.assert_array_equal(out[:2, 0], visits.draws(wanted)[[3, 9]])
    assert visits.size_bytes == 0 and visits.ahead_tasks() == [] and visits.forms["train"] == "none"


def test_statistics_are_of_training_examples_alone() -> None:
    visits = BlockVisits(msgspec.structs.replace(CONFIG, validation=0.5), BlockSource(5000), 7, 10**6)
    train = visits.draws(Range("train", FILE_ORDER, 0, 2500))
    assert 100 <= len(visits.sample()) <= 2048 and set(visits.sample()) <= set(train)


@pytest.mark.parametrize("budget_bytes", [0, 2 * 9 * 12, 10**6])
def test_passes_by_weight_draw_repeats_and_skip_windows_without_any(budget_bytes: int) -> None:
    """A source sorted by class, in windows of one block: those of the class of no weight have no part in a pass."""
    source = BlockSource(600)
    source._labels["train"] = (np.arange(600) // 200).astype(np.int32)
    config = msgspec.structs.replace(CONFIG, sampling={"0": 3.0, "1": 0.0})
    visits = BlockVisits(config, source, 7, budget_bytes)
    assert visits.examples["train"] == 600
    whole = visits.draws(Range("train", 2, 0, 600))
    counts = np.bincount(source.labels("train")[whole % 600], minlength=3)
    assert abs(counts[0] - 450) < 5 and not counts[1] and len(set(whole.tolist())) == 600  # a repeat is another draw
    out = np.empty((30, 3), np.float32)
    for start in range(0, 600, 30):
        visits.gather(Range("train", 2, start, start + 30), out)
        np.testing.assert_array_equal(out[:, 0], whole[start : start + 30] % 600)
        for task in visits.ahead_tasks():
            task()
    middle = {number for _, number in source.reads if 220 <= number < 380}
    assert not middle

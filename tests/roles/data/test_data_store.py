"""Open data sets of a server: opened once, within memory, ranges ready ahead of need."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import (
    BackpressureError,
    ChangedDataError,
    ConfigurationError,
    DamagedDataError,
    RemoteError,
    UnreachableError,
)
from adamctl.roles.data import store as store_module
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.order.ownership import Share
from adamctl.roles.data.preparing import Asked, ReadyRange
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.sets.visits import ExampleVisits
from adamctl.roles.data.store import DataStore
from adamctl.wire.constants import ErrorCode
from tests.roles.data.orders import whole_pass

WAIT_S = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DataStore]:
    made = DataStore([str(tmp_path)], threads=2, ahead=3, memory_bytes=1 << 30)
    yield made
    made.close()
    assert made._buffers.statistics().outstanding_buffers == 0


def read(store: DataStore, dataset: str, wanted: Range, share: Share | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first pixels and the labels of a range of 4 x 4 images."""
    results: queue.Queue[ReadyRange | Exception] = queue.Queue()
    result: ReadyRange | Exception | None = store.read(dataset, Asked(wanted, share), results.put)
    if result is None:
        result = results.get(timeout=WAIT_S)
    if isinstance(result, Exception):
        raise result
    n = result.examples
    images = np.frombuffer(result.body, np.uint8, n * 16).reshape(n, 16)[:, 0].copy()
    labels = np.frombuffer(result.body, np.int32, n, result.layout.labels_offset).copy()
    result.release()
    return images, labels


TINY = DataConfig(format="idx", source="tiny", scale="none")


def test_every_example_comes_once_per_pass_with_its_label(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    dataset = store.open(TINY, (4, 4, 1), 7)
    for pass_number in range(3):
        seen = [read(store, dataset.name, Range("train", pass_number, at, min(at + 8, 50))) for at in range(0, 50, 8)]
        images = np.concatenate([images for images, _ in seen])
        labels = np.concatenate([labels for _, labels in seen])
        assert sorted(images.tolist()) == list(range(50))
        np.testing.assert_array_equal(images % 10, labels)
        assert images.tolist() != list(range(50))


def test_two_servers_give_the_same_ranges(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder()
    other = DataStore([str(folder.parent)], threads=1, memory_bytes=0)
    first, second = store.open(TINY, (4, 4, 1), 7), other.open(TINY, (4, 4, 1), 7)
    assert first.name == second.name and first.examples == second.examples
    for wanted in (Range("train", 5, 10, 30), Range("test", FILE_ORDER, 0, 20)):
        for one, two in zip(read(store, first.name, wanted), read(other, second.name, wanted), strict=True):
            np.testing.assert_array_equal(one, two)
    other.close()


def test_file_order_is_the_order_of_the_files(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    dataset = store.open(TINY, (4, 4, 1), 7)
    assert read(store, dataset.name, Range("test", FILE_ORDER, 5, 9))[0].tolist() == [105, 106, 107, 108]


def test_validation_and_training_share_no_example(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    config = DataConfig(format="idx", source="tiny", scale="none", validation=0.2)
    dataset = store.open(config, (4, 4, 1), 7)
    assert dataset.examples == {"train": 40, "validation": 10, "test": 20}
    train, _ = read(store, dataset.name, Range("train", 1, 0, 40))
    held_out, _ = read(store, dataset.name, Range("validation", FILE_ORDER, 0, 10))
    assert sorted([*train, *held_out]) == list(range(50))


def test_opening_twice_gives_the_same(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    assert store.open(TINY, (4, 4, 1), 7) is store.open(TINY, (4, 4, 1), 7)
    assert store.open(TINY, (4, 4, 1), 8) is not store.open(TINY, (4, 4, 1), 7)


def csv_set(tmp_path: Path, value: int) -> DataConfig:
    """Writes a table of 20 examples [1] of one value, in the place of any before."""
    (tmp_path / "table.csv").write_text("".join(f"{value},{number % 2}\n" for number in range(20)))
    return DataConfig(format="csv", source=str(tmp_path / "table.csv"), scale="none")


def test_a_set_whose_file_was_corrected_is_opened_anew(store: DataStore, tmp_path: Path) -> None:
    values = np.zeros((1, 1), np.float32)
    for value in (1, 22):
        opened = store.open(csv_set(tmp_path, value), (1,), 7)
        opened.source.load("train", np.array([0]), values)
        assert values.item() == value and len(store.status()["datasets"]) == 1


def test_a_set_is_not_taken_from_its_readers_when_its_file_changes_however_long_they_read_nothing(
    store: DataStore, tmp_path: Path
) -> None:
    config = csv_set(tmp_path, 1)
    opened = store.open(config, (1,), 7)
    store.came(1, opened)
    opened.read_at_s -= 3600
    csv_set(tmp_path, 22)
    with pytest.raises(ConfigurationError, match=r"table\.csv: expected the files that this data server has open"):
        store.open(config, (1,), 7)
    assert store.open(config, (1,), 7, again=True) is opened, "who reads it may ask about it"
    assert store.open(config, (1,), 8) is not opened
    store.left(1)
    assert store.open(config, (1,), 7) is not opened, "no reader is left"


def test_a_read_is_never_answered_with_other_files_than_its_reader_has_opened(
    store: DataStore, idx_folder: Callable[..., Path]
) -> None:
    folder = idx_folder(compress=False)
    opened = store.open(TINY, (4, 4, 1), 7)
    files = store.files_of(opened)
    wanted, done = Asked(Range("train", 0, 0, 5)), queue.Queue[ReadyRange | Exception]().put
    os.utime(folder / "train-labels-idx1-ubyte", ns=(0, 0))
    store.close_dataset(opened.name)
    anew = store.open(TINY, (4, 4, 1), 7)
    with pytest.raises(ChangedDataError, match="tiny: the files have changed during the run"):
        store.read(anew.name, wanted, done, reader=1, files=files)
    assert not anew.readers
    for said in (store.files_of(anew), b"another process" + files[8:], b""):
        read_after = queue.Queue[ReadyRange | Exception]()
        ready = store.read(anew.name, wanted, read_after.put, reader=1, files=said) or read_after.get(timeout=WAIT_S)
        assert isinstance(ready, ReadyRange)
        ready.release()
    assert anew.readers == {1}


def test_what_is_behind_a_url_is_served_on_while_its_server_is_away(
    store: DataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = csv_set(tmp_path, 1)
    opened = store.open(config, (1,), 7)

    def away(*arguments: Any) -> bytes:
        raise UnreachableError("nobody answers")

    monkeypatch.setattr(store_module, "state_of", away)
    assert store.open(config, (1,), 7) is opened
    with pytest.raises(UnreachableError):
        store.open(config, (1,), 8)


def test_a_reader_in_order_finds_its_ranges_ready(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    idx_folder(train=400)
    dataset = store.open(TINY, (4, 4, 1), 7)
    for at in range(0, 400, 10):
        read(store, dataset.name, Range("train", 0, at, at + 10))
    status = store.status()
    assert status["reads"] == 40 and status["reads_ready"] + status["reads_in_work"] == 39
    assert status["ready_share"] == status["reads_ready"] / 40


def test_without_memory_for_decoded_examples_the_same_comes_out(idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder()
    store = DataStore([str(folder.parent)], threads=2, memory_bytes=100)
    dataset = store.open(TINY, (4, 4, 1), 7)
    assert set(dataset.visits.forms.values()) == {"none"}
    assert sorted(read(store, dataset.name, Range("train", 0, 0, 50))[0].tolist()) == list(range(50))
    store.close()


@pytest.mark.parametrize(("budget", "forms"), [(10**6, ["all", "all"]), (700, ["part", "none"])])
def test_what_is_held_stays_within_the_share_of_memory(
    store: DataStore, image_folder: Callable[..., Path], budget: int, forms: list[str]
) -> None:
    image_folder()
    config = DataConfig(format="imagefolder", source="images", scale="none", memory_share=budget / store.memory_bytes)
    dataset = store.open(config, (4, 4, 1), 7)
    for split in ("train", "test"):
        read(store, dataset.name, Range(split, 0, 0, dataset.examples[split]))
    assert 0 < dataset.held_bytes <= dataset.size_bytes <= budget
    assert list(dataset.visits.forms.values()) == forms
    assert dataset.visits.held_bytes == dataset.visits.size_bytes > 150  # of 24 images of 16 bytes


def test_two_sets_opened_at_once_stay_within_the_share_together(
    store: DataStore, image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder()
    config = DataConfig(format="imagefolder", source="images", scale="none")
    first = store.open(config, (4, 4, 1), 0)
    room_bytes = first.visits.size_bytes  # for the decoded images of one more
    budget_bytes = first.size_bytes + 2 * first.source.resident_bytes + room_bytes
    config = msgspec.structs.replace(config, memory_share=budget_bytes / store.memory_bytes)
    both = threading.Barrier(2)

    def opened_at_once(*args: Any) -> OpenDataSet:
        both.wait(WAIT_S)
        return OpenDataSet(*args)

    monkeypatch.setattr(store_module, "OpenDataSet", opened_at_once)
    with ThreadPoolExecutor(2) as pool:
        opened = list(pool.map(lambda seed: store.open(config, (4, 4, 1), seed), (1, 2), timeout=WAIT_S))
    held_bytes = sorted(dataset.visits.size_bytes for dataset in opened)
    assert sum(held_bytes) <= room_bytes and held_bytes[1] > 0


def test_two_servers_keep_a_set_twice_as_large_as_the_memory_of_one(image_folder: Callable[..., Path]) -> None:
    """Each decodes only its own part, and keeps it; who takes over decodes the rest, and gives it back later."""
    folder = image_folder(examples=100)
    first = DataStore([str(folder.parent)], threads=1, ahead=0, memory_bytes=1 << 30)
    config = DataConfig(format="imagefolder", source="images", scale="none")
    opened = first.open(config, (4, 4, 1), 7)
    first.close_dataset(opened.name)
    memory_bytes = opened.source.resident_bytes + 100 * 16  # for 100 of 180 images
    dataset = first.open(msgspec.structs.replace(config, memory_share=memory_bytes / (1 << 30)), (4, 4, 1), 7)
    assert isinstance(dataset.visits, ExampleVisits)
    plan = dataset.visits._caches["train"].plan
    kept = plan.examples
    examples, names = dataset.examples["train"], ("data-1", "data-2")
    assert plan.form == "part" and examples / 2 < kept < examples
    loaded: list[int] = []
    load = dataset.source.load

    def counting(split: Any, indices: Any, out: Any) -> None:
        loaded.extend(indices.tolist())
        load(split, indices, out)

    dataset.source.load = counting  # type: ignore[method-assign]

    def read_pass(pass_number: int, servers: tuple[str, ...]) -> int:
        """Returns how many examples were decoded for this server's share."""
        loaded.clear()
        read(first, dataset.name, Range("train", pass_number, 0, examples), Share(servers, 0))
        return len(loaded)

    mine = read_pass(0, names)
    assert 0 < mine <= kept
    assert read_pass(1, names) == 0, "all that it owns is in memory"
    assert read_pass(2, names[:1]) == examples - mine, "the other one has died"
    assert read_pass(3, names[:1]) == examples - kept
    assert read_pass(4, names) == 0, "nothing of its own was lost"
    first.close()


def test_what_a_source_has_in_memory_is_not_held_twice(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    dataset = store.open(TINY, (4, 4, 1), 7)
    read(store, dataset.name, Range("train", 0, 0, 50))
    assert dataset.held_bytes == dataset.size_bytes == dataset.source.resident_bytes == 70 * 16 + 70 * 4


def test_an_idle_data_set_makes_room_and_is_opened_again(
    store: DataStore, idx_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "IDLE_S_MIN", 0.0)
    idx_folder()
    share = 2000 / store.memory_bytes
    config = DataConfig(format="idx", source="tiny", scale="none", memory_share=share)
    first = store.open(config, (4, 4, 1), 1)
    second = store.open(config, (4, 4, 1), 2)
    assert read(store, second.name, Range("train", 0, 0, 5))
    with pytest.raises(RemoteError) as caught:
        read(store, first.name, Range("train", 0, 0, 5))
    assert caught.value.code == ErrorCode.UNKNOWN_DATASET
    assert store.open(config, (4, 4, 1), 1).name == first.name


def test_unknown_data_sets_and_ranges_are_refused(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    idx_folder()
    dataset = store.open(TINY, (4, 4, 1), 7)
    with pytest.raises(RemoteError) as caught:
        read(store, "nothing", Range("train", 0, 0, 1))
    assert caught.value.code == ErrorCode.UNKNOWN_DATASET
    with pytest.raises(RemoteError, match="<= 50") as caught:
        read(store, dataset.name, Range("train", 0, 40, 51))
    assert caught.value.code == ErrorCode.BAD_RANGE


def test_a_failed_opening_is_reported_and_can_be_tried_again(store: DataStore, idx_folder: Callable[..., Path]) -> None:
    with pytest.raises(ConfigurationError, match="tiny"):
        store.open(TINY, (4, 4, 1), 7)
    idx_folder()
    assert store.open(TINY, (4, 4, 1), 7).examples["train"] == 50


def test_a_broken_image_fails_its_reads_and_no_others(image_folder: Callable[..., Path], store: DataStore) -> None:
    folder = image_folder(examples=30)
    config = DataConfig(format="imagefolder", source="images", scale="none")
    dataset = store.open(config, (4, 4, 1), 7)
    victim = dataset.source.paths("train")[0]  # type: ignore[attr-defined]
    victim.write_bytes(victim.read_bytes()[:40])
    position = whole_pass(dataset, "train", 0).tolist().index(0)
    with pytest.raises(DamagedDataError, match=victim.name):
        read(store, dataset.name, Range("train", 0, position, position + 1))
    other = position - 1 if position else 1
    assert len(read(store, dataset.name, Range("train", 0, other, other + 1))[0]) == 1
    assert folder.exists()


def test_what_was_read_and_left_out_still_counts_when_a_data_set_is_closed(
    image_folder: Callable[..., Path], store: DataStore
) -> None:
    image_folder(examples=30)
    config = DataConfig(format="imagefolder", source="images", scale="none", on_error="skip")
    opened = store.open(config, (4, 4, 1), 7)
    for victim in opened.source.paths("train")[:2]:  # type: ignore[attr-defined]
        victim.write_bytes(victim.read_bytes()[:40])
    store.close_dataset(opened.name)
    found = []
    for _ in range(2):
        dataset = store.open(config, (4, 4, 1), 7)
        read(store, dataset.name, Range("train", 0, 0, dataset.examples["train"]))
        found.append((store.status()["skipped"], store.status()["read_bytes"]))
        assert found[-1][0] == len(found) * store.status()["datasets"][0]["skipped"]
        store.close_dataset(dataset.name)
        store.close_dataset(dataset.name)
        assert (store.status()["skipped"], store.status()["read_bytes"]) == found[-1]
    assert found[0][0] == 2 and found[1][0] == 4 and found[1][1] > found[0][1] > 0


def test_images_are_decoded_in_chunks_into_one_range(image_folder: Callable[..., Path], store: DataStore) -> None:
    image_folder(examples=25)
    dataset = store.open(DataConfig(format="imagefolder", source="images", scale="none"), (4, 4, 1), 7)
    count = dataset.examples["train"]
    for pass_number in (0, 1):
        images, labels = read(store, dataset.name, Range("train", pass_number, 0, count))
        order = whole_pass(dataset, "train", pass_number)
        paths = dataset.source.paths("train")  # type: ignore[attr-defined]
        assert images.tolist() == [10 * int(paths[index].stem) for index in order]
        assert labels.tolist() == [int(paths[index].parent.name == "dog") for index in order]


def test_reads_beyond_the_bound_are_pushed_back(idx_folder: Callable[..., Path], store: DataStore) -> None:
    idx_folder(train=3000, side=100)
    dataset = store.open(TINY, (100, 100, 1), 7)
    held: list[ReadyRange] = []
    results: queue.Queue[ReadyRange | Exception] = queue.Queue()
    with pytest.raises(BackpressureError):
        for at in range(1000):
            ready = store.read(dataset.name, Asked(Range("train", at, 0, 800)), results.put)
            held.append(ready if ready is not None else results.get(timeout=WAIT_S))  # type: ignore[arg-type]
    for ready in held:
        ready.release()
    assert store.status()["reads_refused"] == 1


def test_mnist_is_served_as_bytes(mnist: Path) -> None:
    store = DataStore([str(mnist.parent)], threads=2, memory_bytes=2 << 30)
    dataset = store.open(DataConfig(format="idx", source="mnist", scale="standard"), (28, 28, 1), 7)
    results: queue.Queue[ReadyRange | Exception] = queue.Queue()
    ready = store.read(dataset.name, Asked(Range("train", 0, 0, 8000)), results.put) or results.get(timeout=WAIT_S)
    assert isinstance(ready, ReadyRange)
    images = np.empty(8000 * 784, np.float32)
    dataset.scaling.write(np.frombuffer(ready.body, np.uint8, images.size), images)
    assert abs(images.mean()) < 0.02 and abs(images.std() - 1) < 0.02
    ready.release()
    store.close()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan"), float("inf")])
def test_a_share_of_memory_that_is_none_is_refused(
    store: DataStore, idx_folder: Callable[..., Path], share: float
) -> None:
    config = DataConfig(format="idx", source=str(idx_folder()), memory_share=share)
    with pytest.raises(ConfigurationError, match=r"data\.memory_share: expected a share above 0 and at most 1"):
        store.open(config, (4, 4, 1), 0)

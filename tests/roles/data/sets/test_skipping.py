"""Damaged examples are left out where the experiment says so: which ones, how they are marked, what is logged."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ChangedDataError, DamagedDataError
from adamctl.roles.data.client.batches import without_skipped
from adamctl.roles.data.core import FILE_ORDER, SKIPPED, Range
from adamctl.roles.data.describe.look import Needs, look
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.source import TableSource
from adamctl.roles.data.scaling import mean_and_deviation
from adamctl.roles.data.sets import skipping
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.sets.skipping import SkippingSource
from tests.roles.data.prepared.sets import prepared
from tests.roles.data.readers.test_tar import array, picture, write
from tests.roles.data.speech.sounds import write_recordings

BUDGET_BYTES = 1 << 20


class Holed(TableSource):
    """A table of which every third example cannot be read, and counts how often it is asked."""

    resident = False

    def __init__(self, values: NDArray[Any], labels: NDArray[np.int32]) -> None:
        arrays: Any = {"train": (values, labels), "test": (values[:0], labels[:0])}
        super().__init__(
            "holed", arrays, value_max=1.0, stored_bytes=0, input_shape=values.shape[1:], origin="x", classes=("a", "b")
        )
        self.asked: list[int] = []
        self.calls = 0

    def load(self, split: Any, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        self.calls += 1
        self.asked += indices.tolist()
        if (indices % 3 == 0).any():
            raise DamagedDataError(f"x: example {int(indices[indices % 3 == 0][0])} is damaged")
        super().load(split, indices, out)


def holed(examples: int = 10) -> Holed:
    values = np.repeat(np.arange(1, examples + 1, dtype=np.float32)[:, None], 4, axis=1)
    return Holed(values, np.arange(examples, dtype=np.int32) % 2)


def _images(folder: Path) -> tuple[Path, tuple[int, ...]]:
    for name in ("a", "b"):
        (folder / "train" / name).mkdir(parents=True)
        (folder / "train" / name / "1.png").write_bytes(picture(1))
    return folder / "train" / "a" / "1.png", (4, 4, 3)


def _tar(folder: Path) -> tuple[Path, tuple[int, ...]]:
    files = [("0.npy", array(np.zeros((2, 2), np.uint8))), ("0.cls", b"0")]
    return write(folder / "train" / "a.tar", files), (2, 2, 1)


def _npy(folder: Path) -> tuple[Path, tuple[int, ...]]:
    folder.mkdir()
    np.save(folder / "x_train.npy", np.zeros((20, 4), np.float32))
    np.save(folder / "y_train.npy", np.zeros(20, np.int64))
    return folder / "x_train.npy", (4,)


def _parquet(folder: Path) -> tuple[Path, tuple[int, ...]]:
    folder.mkdir()
    for name in ("train", "test"):
        pq.write_table(pa.table({"x": np.zeros(20), "label": np.zeros(20, np.int8)}), folder / f"{name}.parquet")
    return folder / "train.parquet", (1,)


def _prepared(folder: Path) -> tuple[Path, tuple[int, ...]]:
    prepared(folder)
    return max(folder.iterdir(), key=lambda path: path.stat().st_size), (4, 3, 1)


def _recordings(folder: Path) -> tuple[Path, tuple[int, ...]]:
    write_recordings(folder, dict.fromkeys(("train/a/1.wav", "train/b/1.wav", "test/a/1.wav"), 4000))
    return folder / "train" / "a" / "1.wav", (11 * 40,)


SETS: dict[str, Callable[[Path], tuple[Path, tuple[int, ...]]]] = {
    "imagefolder": _images, "tar": _tar, "npy": _npy, "parquet": _parquet, "prepared": _prepared, "audio": _recordings,
}  # fmt: skip
"""Format -> what writes a set of it, and returns a file of its training examples and the model's input."""


def test_damaged_examples_are_zeros_and_marked_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    inner = holed()
    source = SkippingSource(inner)
    out = np.full((6, 4), 7, np.float32)
    indices = np.array([5, 3, 1, 0, 8, 9])
    with caplog.at_level(logging.WARNING, "adamctl.data"):
        source.load("train", indices, out)
    assert out[:, 0].tolist() == [6, 0, 2, 0, 9, 0]
    assert source.damaged("train", indices).tolist() == [False, True, False, True, False, True]
    assert [record.message for record in caplog.records] == [
        f"skipped example {number} of train: x: example {number} is damaged" for number in (3, 0, 9)
    ]
    inner.asked.clear()
    inner.calls = 0
    out[...] = 7
    with caplog.at_level(logging.WARNING, "adamctl.data"):
        source.load("train", indices, out)
    assert len(caplog.records) == 3 and sorted(inner.asked) == [1, 5, 8], "what is damaged is not tried again"
    assert inner.calls == 1, "the others are read together"
    assert out[:, 0].tolist() == [6, 0, 2, 0, 9, 0]


def test_numbers_that_are_not_finite_are_damaged() -> None:
    values = np.ones((4, 2), np.float32)
    values[2, 1] = np.nan
    arrays: Any = {"train": (values, np.zeros(4, np.int32)), "test": (values[:0], np.zeros(0, np.int32))}
    inner = TableSource("t", arrays, value_max=1.0, stored_bytes=0, input_shape=(2,), origin="x", classes=("a",))
    source, out = SkippingSource(inner), np.empty((4, 2), np.float32)
    source.load("train", np.arange(4), out)
    assert source.damaged("train", np.arange(4)).tolist() == [False, False, True, False] and not out[2].any()


def test_the_log_names_so_many_and_no_more(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipping, "LOGGED_MAX", 2)
    with caplog.at_level(logging.WARNING, "adamctl.data"):
        SkippingSource(holed(30)).load("train", np.arange(30), np.empty((30, 4), np.float32))
    assert len(caplog.records) == 3 and "without being named" in caplog.records[-1].message


def test_what_a_source_has_besides_is_still_there() -> None:
    inner = holed()
    inner.blocks = lambda split: np.array([10])  # type: ignore[attr-defined]
    source = SkippingSource(inner)
    assert source.blocks("train").tolist() == [10]
    assert not hasattr(source, "no_such_thing") and source.classes == ("a", "b")


def test_mean_and_deviation_are_of_the_whole_ones() -> None:
    source = SkippingSource(holed())
    expected = np.array([number + 1 for number in range(10) if number % 3])
    assert mean_and_deviation(source, np.arange(10)) == pytest.approx((expected.mean(), expected.std()))
    with pytest.raises(DamagedDataError, match="every example of train"):
        mean_and_deviation(source, np.array([0, 3]))


@pytest.mark.parametrize("budget_bytes", [0, BUDGET_BYTES])
def test_a_range_has_the_label_of_skipped_ones(budget_bytes: int) -> None:
    config = DataConfig(format="npz", source="x", on_error="skip", scale="none")
    dataset = OpenDataSet("x", config, holed(), 7, budget_bytes)
    for _ in range(2):
        images, labels = np.empty((10, 4), np.float32), np.empty(10, np.int32)
        dataset.gather(Range("train", FILE_ORDER, 0, 10), images, labels)
        assert labels.tolist() == [SKIPPED, 1, 0, SKIPPED, 0, 1, SKIPPED, 1, 0, SKIPPED]
    kept, of_kept = without_skipped(images, labels)
    assert kept[:, 0].tolist() == [2, 3, 5, 6, 8, 9] and of_kept.tolist() == [1, 0, 0, 1, 1, 0]
    whole = without_skipped(kept, of_kept)
    assert whole[0] is kept and whole[1] is of_kept


def test_without_it_the_run_ends() -> None:
    config = DataConfig(format="npz", source="x", scale="none")
    dataset = OpenDataSet("x", config, holed(), 7, 0)
    with pytest.raises(DamagedDataError, match="example 0"):
        dataset.gather(Range("train", FILE_ORDER, 0, 10), np.empty((10, 4), np.float32), np.empty(10, np.int32))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:30])


def _touched(path: Path) -> None:
    os.utime(path, ns=(0, 0))


@pytest.mark.parametrize("change", [_cut, _touched, Path.unlink])
@pytest.mark.parametrize("format", ["imagefolder", "tar", "npy", "parquet", "prepared", "audio"])
def test_a_file_that_changes_ends_the_run_all_the_same(
    tmp_path: Path, format: str, change: Callable[[Path], None]
) -> None:
    victim, shape = SETS[format](tmp_path / "set")
    config = DataConfig(format=format, source=str(tmp_path / "set"), on_error="skip")
    source = SkippingSource(open_source(config, tmp_path / "set", shape))
    if format == "tar" and change is Path.unlink:
        pytest.skip("a shard stays open, and can be read when its name is gone")
    change(victim)
    out = np.empty((len(source.labels("train")), *source.example_shape), source.dtype)
    with pytest.raises(ChangedDataError, match=victim.name):
        source.load("train", np.arange(len(out)), out)
    assert source.skipped == 0


def test_a_file_that_the_system_cannot_read_ends_the_run_all_the_same(
    image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(examples=6)
    config = DataConfig(format="imagefolder", source=str(folder), on_error="skip")
    source = SkippingSource(open_source(config, folder, (4, 4, 3)))

    def broken(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "read_bytes", broken)
    with pytest.raises(ChangedDataError, match="Input/output error"):
        source.load("train", np.arange(2), np.empty((2, 4, 4, 3), np.uint8))
    assert source.skipped == 0


def test_damaged_places_of_a_tar_are_examples_that_are_skipped(tmp_path: Path) -> None:
    files = [
        ("0.npy", array(np.zeros((2, 2), np.uint8))),
        ("0.cls", b"0"),
        ("1.npy", array(np.ones((2, 2), np.uint8))),
        ("2.npy", array(np.ones((2, 2), np.uint8))),
        ("2.cls", b"\xff"),
        ("3.npy", array(np.ones((2, 2), np.uint8))),
        ("3.cls", b"1"),
    ]
    path = write(tmp_path / "set" / "train" / "a.tar", files)
    with path.open("r+b") as file:  # the last sample's class is cut off
        file.truncate(path.read_bytes().rindex(b"3.cls"))
    config = DataConfig(format="tar", source=str(tmp_path / "set"), on_error="skip")
    source = SkippingSource(open_source(config, tmp_path / "set", (2, 2, 1)))
    everything = np.arange(len(source.labels("train")))
    out = np.empty((len(everything), *source.example_shape), source.dtype)
    source.load("train", everything, out)
    assert source.damaged("train", everything).tolist() == [False, True, True, True, True]
    assert sum(source.blocks("train")) == 5 and prod(source.example_shape) == 4
    with pytest.raises(DamagedDataError, match=r"and 3 more places"):
        open_source(DataConfig(format="tar", source="x"), tmp_path / "set", (2, 2, 1))


def test_a_look_says_how_many_will_be_skipped(image_folder: Callable[..., Path]) -> None:
    folder = image_folder(examples=6)
    (folder / "cat" / "001.png").write_bytes(picture(1)[:40])
    needs = Needs((4, 4, 3), 2, 1, 7)
    config = DataConfig(format="imagefolder", source=str(folder), on_error="skip")
    assert any("1 examples that were looked at are damaged" in text for text in look(config, needs, full=True).warnings)
    assert look(config, needs).warnings == ()
    with pytest.raises(DamagedDataError, match=r"001\.png"):
        look(DataConfig(format="imagefolder", source=str(folder)), needs, full=True)

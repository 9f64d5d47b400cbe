"""Any source is written once, and read again as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import DamagedDataError
from adamctl.roles.data.prepared import prepare as prepare_module
from adamctl.roles.data.prepared.prepare import prepare
from adamctl.roles.data.readers import open_source
from tests.roles.data.prepared.sets import numbers, prepared, source
from tests.roles.data.speech.sounds import write_recordings


def read(folder: Path, split: Any) -> tuple[list[int], list[int]]:
    opened = open_source(DataConfig(format="prepared", source="x"), folder, (4, 3, 1))
    labels = opened.labels(split)
    values = np.empty((len(labels), 4, 3, 1), opened.dtype)
    opened.load(split, np.arange(len(labels)), values)
    return numbers(values), labels.tolist()


class InBlocks:
    """A source that must be read by blocks: it counts how often each block is read."""

    sequential = True

    def __init__(self, lengths: list[int]) -> None:
        self._source = source(sum(lengths))
        self._lengths = lengths
        self.reads: list[int] = []

    def blocks(self, split: str) -> NDArray[np.int64]:
        return np.array(self._lengths if split == "train" else [50], np.int64)

    def load(self, split: Any, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        if split == "train":
            self.reads += np.unique(np.searchsorted(np.cumsum(self._lengths), indices, side="right")).tolist()
        self._source.load(split, indices, out)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_every_example_is_there_once_and_shuffled(tmp_path: Path, dtype: type) -> None:
    folder = prepared(tmp_path / "set", source(dtype=dtype))
    found, labels = read(folder, "train")
    assert sorted(found) == list(range(3000)) and found != sorted(found)
    assert labels == [number % 3 for number in found]
    assert abs(np.corrcoef(found, np.arange(3000))[0, 1]) < 0.1
    assert read(folder, "test")[0] == list(range(9000, 9050))
    opened = open_source(DataConfig(format="prepared", source="x"), folder, (12,))
    assert opened.classes == ("a", "b", "c") and opened.value_max == (255 if dtype is np.uint8 else 1)


def test_the_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    for name, seed, threads in (("a", 1, 1), ("b", 1, 3), ("c", 2, 1)):
        prepare(source(), tmp_path / name, seed=seed, threads=threads, made_from="")
    assert read(tmp_path / "a", "train") == read(tmp_path / "b", "train") != read(tmp_path / "c", "train")


def test_what_is_read_by_blocks_reads_each_in_one_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "WINDOW_BYTES", 4 * 100 * 12)  # windows of four blocks
    lengths = [100, 70, 0, 100, 30, 100, 100, 8, 92]  # an empty block is none
    of = InBlocks(lengths)
    prepare(of, tmp_path / "set", seed=3, threads=1, made_from="")
    found, _ = read(tmp_path / "set", "train")
    assert sorted(found) == list(range(600)) and found[:50] != sorted(found[:50])
    first_window = np.unique(np.searchsorted(np.cumsum(lengths), found[:200], side="right"))
    assert len(first_window) <= 4
    changes = 1 + int(np.count_nonzero(np.diff(of.reads)))
    assert changes == 8, "a block was left and read again"


def test_targets_are_kept(tmp_path: Path) -> None:
    of: Any = source(20, 5)
    targets = {"train": np.random.default_rng(1).random((20, 2), np.float32), "test": np.ones((5, 2), np.float32)}
    of.targets, of.classes = targets.__getitem__, ()
    opened: Any = open_source(DataConfig(format="prepared", source="x"), prepared(tmp_path / "set", of), (4, 3, 1))
    found, labels = read(tmp_path / "set", "train")
    assert np.array_equal(opened.targets("train"), targets["train"][found]) and labels == [0] * 20
    assert np.array_equal(opened.targets("test"), targets["test"])


def test_groups_and_weights_are_kept(tmp_path: Path) -> None:
    of: Any = source(60, 5)
    groups = {"train": np.arange(60) // 7, "test": np.arange(5)}
    of.groups, of.weights = groups.__getitem__, lambda split: np.arange(60) / 4
    opened: Any = open_source(DataConfig(format="prepared", source="x"), prepared(tmp_path / "set", of), (4, 3, 1))
    found, _ = read(tmp_path / "set", "train")
    assert opened.groups("train").tolist() == [number // 7 for number in found]
    assert opened.groups("test").tolist() == [0, 1, 2, 3, 4]
    assert opened.weights("train").tolist() == [number / 4 for number in found]
    assert opened.resident_bytes >= 65 * (4 + 8) + 60 * 8, "labels, groups and weights are in memory"
    without: Any = open_source(DataConfig(format="prepared", source="x"), prepared(tmp_path / "other"), (4, 3, 1))
    assert without.groups("train") is None and not hasattr(without, "weights")


def test_an_example_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path) -> None:
    of = source(dtype=np.float32)
    of._images["train"][77] = np.nan
    with pytest.raises(DamagedDataError, match="here: train: expected finite numbers, found nan in example 77"):
        prepare(of, tmp_path / "set", seed=3, threads=2, made_from="")
    assert not list(tmp_path.iterdir())


def test_damaged_examples_may_be_left_out(tmp_path: Path) -> None:
    of = source(dtype=np.float32)
    of._images["train"][[77, 1200]] = np.nan
    done = prepare(of, tmp_path / "set", seed=3, threads=2, made_from="", skip=True)
    assert done.skipped == {"train": 2, "test": 0}
    found, labels = read(tmp_path / "set", "train")
    assert sorted(found) == [number for number in range(3000) if number not in (77, 1200)]
    assert labels == [number % 3 for number in found]


def test_frames_of_recordings_stay_together(tmp_path: Path) -> None:
    write_recordings(tmp_path / "set", {f"{name}/{number}.wav": 900 for name in ("yes", "no") for number in range(9)})
    config = DataConfig(format="audio", source=str(tmp_path / "set"))
    recordings: Any = open_source(config, tmp_path / "set", (440,))
    prepare(recordings, tmp_path / "new", seed=7, threads=1, made_from="x")
    opened: Any = open_source(DataConfig(format="prepared", source="x"), tmp_path / "new", (440,))
    for split in ("train", "test"):
        pairs = sorted(zip(recordings.groups(split).tolist(), recordings.labels(split).tolist(), strict=True))
        assert sorted(zip(opened.groups(split).tolist(), opened.labels(split).tolist(), strict=True)) == pairs

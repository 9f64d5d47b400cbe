"""Several files of examples are one set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers import open_source, peek_source

CONFIG = DataConfig(format="npz", source="set")


def archive(folder: Path, name: str, first: int, labels: Any, **others: Any) -> None:
    values = np.arange(first, first + len(labels), dtype=np.float32)[:, None] * np.ones((1, 2), np.float32)
    np.savez(folder / name, x_train=values, y_train=labels, **others)


def test_archives_of_a_folder_follow_one_another(tmp_path: Path) -> None:
    archive(tmp_path, "b.npz", 10, ["dog", "owl"])
    archive(tmp_path, "a.npz", 0, ["cat", "dog", "cat"], x_test=np.zeros((1, 2)), y_test=["dog"])
    source = open_source(CONFIG, tmp_path, (2,))
    assert source.classes == ("cat", "dog", "owl")
    assert source.labels("train").tolist() == [0, 1, 0, 1, 2] and source.labels("test").tolist() == [1]
    for indices in (range(5), [4, 0, 3], [1, 2], []):
        out = np.empty((len(indices), 2), np.float32)
        source.load("train", np.array(indices, np.int64), out)
        assert out[:, 0].tolist() == [[0, 1, 2, 10, 11][index] for index in indices]
    peek = peek_source(CONFIG, tmp_path, (2,), 10, 1.0)
    assert peek.classes == source.classes and peek.labels("train").tolist() == source.labels("train").tolist()


def test_numbered_classes_stay_numbers(tmp_path: Path) -> None:
    archive(tmp_path, "a.npz", 0, [0, 1])
    archive(tmp_path, "b.npz", 2, [11, 3])
    source = open_source(CONFIG, tmp_path, (2,))
    assert source.classes == tuple(map(str, range(12))) and source.labels("train").tolist() == [0, 1, 11, 3]


def test_names_that_only_look_like_numbers_are_names(tmp_path: Path) -> None:
    archive(tmp_path, "a.npz", 0, ["01", "2"])
    archive(tmp_path, "b.npz", 2, ["02", "01", "9" * 5000])
    source = open_source(CONFIG, tmp_path, (2,))
    assert source.classes == ("01", "02", "9" * 5000, "2")
    assert source.labels("train").tolist() == [0, 3, 1, 0, 2]


def test_a_class_of_a_large_number_is_refused_before_all_below_it_are_named(tmp_path: Path) -> None:
    archive(tmp_path, "a.npz", 0, ["0", "1"])
    archive(tmp_path, "b.npz", 2, ["0", "1000000000000"])
    with pytest.raises(ConfigurationError, match=r"at most 8192 classes, from 0, found 1000000000000 in its files"):
        open_source(CONFIG, tmp_path, (2,))


def test_targets_and_weights_are_joined(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 3)):
        values = np.full((3, 2), first, np.float32)
        np.savez(tmp_path / f"{name}.npz", x_train=values, targets_train=values[:, :1] + 0.5, weights=[1, 2, first])
    source: Any = open_source(CONFIG, tmp_path, (2,))
    assert source.targets("train")[:, 0].tolist() == [0.5] * 3 + [3.5] * 3 and source.classes == ()
    assert source.weights("train").tolist() == [1, 2, 0, 1, 2, 3]
    assert peek_source(CONFIG, tmp_path, (2,), 10, 1.0).target_count == 1


def test_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    archive(tmp_path, "a.npz", 0, [0, 1])
    np.savez(tmp_path / "b.npz", x_train=np.zeros((2, 2), np.uint8), y_train=[0, 1])
    with pytest.raises(DamagedDataError, match=r"b\.npz: expected examples as in .*, float32 \[2\]; found uint8 \[2\]"):
        open_source(CONFIG, tmp_path, (2,))
    np.savez(tmp_path / "b.npz", x_train=np.zeros((2, 2)), targets_train=[0.5, 1])
    with pytest.raises(DamagedDataError, match=r"expected as many targets in each file, found \[0, 1\]"):
        open_source(CONFIG, tmp_path, (2,))


def test_too_many_classes_together_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        archive(tmp_path, f"{name}.npz", 0, [f"{name}{number}" for number in range(5000)])
    with pytest.raises(ConfigurationError, match="expected at most 8192 classes, found 10000 in its files"):
        open_source(CONFIG, tmp_path, (2,))

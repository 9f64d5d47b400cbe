"""`adam.Source`: examples from any Python code become a set that data servers read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers import open_source


class Indexed:
    """A data set as PyTorch has them: inputs tell their number."""

    def __init__(self, count: int, dtype: type = np.float64, broken: int = -1) -> None:
        self.count, self.dtype, self.broken = count, dtype, broken
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == self.broken:
            raise KeyError("no such file")
        self.asked.append(index)
        return np.full((2, 2), index, self.dtype), index % 3


def read(source: adam.Source, folder: Path, split: Any = "train") -> tuple[list[Any], list[int], Any]:
    config = source.write(folder)
    opened = open_source(config, Path(config.source), None)
    labels = opened.labels(split)
    values = np.empty((len(labels), *opened.example_shape), opened.dtype)
    opened.load(split, np.arange(len(labels)), values)
    return values.reshape(len(values), -1)[:, 0].tolist() if len(values) else [], labels.tolist(), opened


def test_an_indexable_set_is_asked_once_for_each_example(tmp_path: Path) -> None:
    train = Indexed(600)
    found, labels, opened = read(adam.Source(train, Indexed(7), classes=["a", "b", "c"]), tmp_path)
    assert sorted(found) == list(range(600)) == sorted(train.asked) and found != sorted(found)
    assert labels == [int(value) % 3 for value in found]
    assert opened.classes == ("a", "b", "c") and opened.dtype == np.float32 and opened.example_shape == (2, 2, 1)
    assert len(opened.labels("test")) == 7


def test_bytes_stay_bytes_and_keys_of_data_are_taken(tmp_path: Path) -> None:
    config = adam.Source(Indexed(10, np.uint8), validation=0.2, scale="standard").write(tmp_path)
    assert (config.validation, config.scale, config.format) == (0.2, "standard", "prepared")
    assert open_source(config, Path(config.source), (4,)).value_max == 255


def test_iterators_give_examples_or_batches(tmp_path: Path) -> None:
    singles = ((np.full(3, number), "cat" if number % 2 else "dog") for number in range(300))
    found, labels, opened = read(adam.Source(singles), tmp_path / "singles")
    assert found == list(range(300)) and opened.classes == ("dog", "cat") and labels == [number % 2 for number in found]

    def batches() -> Iterator[tuple[Any, Any]]:
        for start in range(0, 50, 20):
            numbers = np.arange(start, min(start + 20, 50))
            yield numbers[:, None], numbers % 5

    found, labels, opened = read(adam.Source(batches, batches), tmp_path / "batches", "test")
    assert found == list(range(50)) and labels == [number % 5 for number in range(50)]
    assert opened.classes == ("0", "1", "2", "3", "4")


class Regression(Indexed):
    """Targets of `k` numbers, 0: of one alone; the first tells the input."""

    def __init__(self, count: int, k: int, broken: int = -1) -> None:
        super().__init__(count, np.float32)
        self.k, self.odd = k, broken

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        target = np.arange(max(self.k, 1) + (index == self.odd)) + index + 0.5
        return np.full((2, 2), index, np.float32), target if self.k else float(target[0])


@pytest.mark.parametrize("k", [0, 1, 3])
def test_numbers_that_are_not_whole_are_targets(tmp_path: Path, k: int) -> None:
    found, labels, opened = read(adam.Source(Regression(300, k), Regression(5, k)), tmp_path)
    assert opened.classes == () and set(labels) == {0} and sorted(found) == list(range(300))
    expected = np.array(found)[:, None] + np.arange(max(k, 1)) + 0.5
    np.testing.assert_array_equal(opened.targets("train"), expected.astype(np.float32))
    assert opened.targets("test").shape == (5, max(k, 1))


@pytest.mark.parametrize("wide", [False, True])
def test_batches_have_targets_for_each_example(tmp_path: Path, wide: bool) -> None:
    def batches() -> Iterator[tuple[Any, Any]]:
        for start in (0, 20):
            numbers = np.arange(start, start + 20)
            yield numbers[:, None], np.stack([numbers / 2, numbers], axis=1) if wide else numbers / 2

    found, _, opened = read(adam.Source(batches), tmp_path)
    assert found == list(range(40)) and opened.targets("train").shape == (40, 2 if wide else 1)
    assert opened.targets("train")[:, 0].tolist() == [number / 2 for number in range(40)]


def test_targets_must_be_alike_and_finite(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"train\[\d+\]: expected targets of 3 numbers, .*; found float64 \[4\]"
    ):
        adam.Source(Regression(20, 3, broken=7)).write(tmp_path)
    with pytest.raises(DamagedDataError, match=r"train\[0\]: expected finite numbers, found nan in example 1"):
        adam.Source([(np.zeros(2), 1.0), (np.zeros(2), np.nan)]).write(tmp_path)
    with pytest.raises(ConfigurationError, match="numbers in place of classes: leave classes out"):
        adam.Source(Regression(9, 1), classes=["a"]).write(tmp_path)
    with pytest.raises(ConfigurationError, match=r"test\[0\]: expected targets of 1 numbers.*; found <U"):
        adam.Source(Regression(9, 1), [(np.zeros((2, 2), np.float32), "dog")]).write(tmp_path)


def test_an_error_of_the_users_code_stays_itself_and_says_where(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no such file") as caught:
        adam.Source(Indexed(9, broken=4)).write(tmp_path)
    assert caught.value.__notes__ == [
        "adam.Source: train[4]: the error is of the code that gives the examples; the run did not begin"
    ]
    assert not list(tmp_path.iterdir())

    def failing() -> Iterator[Any]:
        yield np.zeros(2), 0
        raise OSError("disk")

    with pytest.raises(OSError, match="disk") as raised:
        adam.Source(failing).write(tmp_path)
    assert "item 1 of train" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ([], "expected training examples, found none"),
        ([np.zeros(3)], r"train\[0\]: expected a pair \(input, label\), found ndarray"),
        (
            iter([(np.zeros(2), 0), (np.zeros(3), 0)]),
            r"train\[1\]: expected an input like the first, float32 \[2\]; found",
        ),
        (iter([(np.zeros(2), 0), (np.zeros(2, np.uint8), 0)]), r"found uint8 \[2\]"),
        (iter([(np.zeros(2), 0), (np.zeros(2), 0.5)]), r"train\[1\]: expected whole numbers as labels, found float64"),
        (iter([(np.zeros((1, 2)), ["a"]), (np.zeros((1, 2)), [1])]), "expected texts as labels, found int64"),
        ([(np.zeros((2, 2)), [0, 1, 2])], "expected as many labels as inputs, found 3 and 2"),
        ([(np.zeros(2), -1)], "expected labels from 0 to 8191, found -1 to -1"),
        ([(["x"], 0)], "expected numbers as input, found <U1"),
    ],
)
def test_examples_that_do_not_fit_are_named(tmp_path: Path, train: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        adam.Source(train).write(tmp_path)


def test_values_must_be_finite_and_classes_those_that_are_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedDataError, match=r"adam\.Source: train: expected finite numbers, found nan in example 0"):
        adam.Source([(np.array([np.nan]), 0)]).write(tmp_path)
    with pytest.raises(ConfigurationError, match="expected labels from 0 to 1, found 2 to 2"):
        adam.Source([(np.zeros(1), 2)], classes=["a", "b"]).write(tmp_path)
    with pytest.raises(ConfigurationError, match="expected one of the 2 classes, found label 'c'"):
        adam.Source([(np.zeros(1), "c")], classes=["a", "b"]).write(tmp_path)
    with pytest.raises(ConfigurationError, match="format cannot be given"):
        adam.Source([], format="npz")


def test_a_set_can_be_kept(tmp_path: Path) -> None:
    config = adam.Source(Indexed(5), keep=tmp_path / "kept").write(tmp_path / "other")
    assert config.source == str(tmp_path / "kept") and not (tmp_path / "other").exists()
    with pytest.raises(ConfigurationError, match="kept exists already"):
        adam.Source(Indexed(5), keep=tmp_path / "kept").write(tmp_path)

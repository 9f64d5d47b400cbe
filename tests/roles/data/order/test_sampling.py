"""Which examples are held out and which a pass is of, where classes count: exact, alike on all servers, fair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.core import FILE_ORDER, Range, split_validation
from adamctl.roles.data.order.sampling import ONE, WeightedPasses, expected_draws, hold_out, split_by_class, weights_of
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.source import Peek
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from tests.roles.data.data_examples import pattern

seeds = st.integers(0, 2**63)
label_lists = st.lists(st.integers(0, 6), max_size=120)


def as_labels(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


# --- validation, class by class -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(label_lists, st.floats(0, 0.99), seeds)
@example([0] * 6 + [1], 0.5, 0)
def test_each_class_gives_its_share(values: list[int], share: float, seed: int) -> None:
    labels = as_labels(values)
    train, validation = split_by_class(labels, share, seed)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(len(labels)))
    assert np.all(np.diff(train) > 0) and np.all(np.diff(validation) > 0)
    for label in set(values):
        exact, found = share * values.count(label), int((labels[validation] == label).sum())
        assert np.floor(exact) <= found <= np.ceil(exact)
        assert (labels[train] == label).any(), "a class has an example to train on"


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(2, 6), st.floats(0.05, 0.6), seeds)
def test_as_many_are_held_out_as_without(per_class: int, classes: int, share: float, seed: int) -> None:
    labels = as_labels([*range(classes)] * per_class)
    if share * per_class > per_class - 1:
        return  # classes keep their last examples
    assert len(split_by_class(labels, share, seed)[1]) == round(share * len(labels))


def test_largest_remainders_get_what_is_left() -> None:
    labels = as_labels([0] * 13 + [1] * 16 + [2] * 11)  # a quarter: 3.25, 4, 2.75, ten together
    held_out = labels[split_by_class(labels, 0.25, 7)[1]]
    assert np.bincount(held_out).tolist() == [3, 4, 3]


def test_held_out_examples_are_drawn_by_seed() -> None:
    labels = as_labels([0, 1] * 100)
    first, again, other = (split_by_class(labels, 0.2, seed)[1].tolist() for seed in (7, 7, 8))
    assert first == again != other


def test_the_split_never_changes_between_releases() -> None:
    labels = as_labels([0, 1, 0, 1, 0, 0, 1, 0, 0, 1])
    assert split_by_class(labels, 0.4, 7)[1].tolist() == [0, 5, 6, 9]
    assert split_validation(10, 0.4, 7)[1].tolist() == [1, 3, 6, 9]


def test_without_the_key_the_split_is_as_ever() -> None:
    labels = as_labels([0] * 90 + [1] * 10)
    peek = Peek(("a", "b"), {"train": labels})
    plain = hold_out(peek, DataConfig(validation=0.2), 7)
    assert [part.tolist() for part in plain] == [part.tolist() for part in split_validation(100, 0.2, 7)]
    stratified = hold_out(peek, DataConfig(validation=0.2, stratify=True), 7)
    assert np.bincount(labels[stratified[1]]).tolist() == [18, 2]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.floats(0.001, 0.99), seeds)
def test_groups_are_held_out_whole_until_they_are_the_share(sizes: list[int], share: float, seed: int) -> None:
    groups = np.repeat(np.arange(len(sizes), dtype=np.int64) * 7, sizes)
    peek = Peek(("a",), {"train": np.zeros(len(groups), np.int32)}, {"train": groups})
    train, validation = hold_out(peek, DataConfig(validation=share), seed)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(len(groups)))
    assert train.tolist() == sorted(train.tolist()) and validation.tolist() == sorted(validation.tolist())
    assert not set(groups[train].tolist()) & set(groups[validation].tolist())
    assert len(train)
    if len(set(groups[train].tolist())) > 1:
        assert round(len(groups) * share) <= len(validation) <= len(groups) * share + max(sizes)


def test_of_each_class_a_share_of_its_groups_is_held_out() -> None:
    groups = np.repeat(np.arange(20, dtype=np.int64), 3)
    labels = as_labels([0] * 45 + [1] * 15)
    config = DataConfig(validation=0.2, stratify=True)
    _, validation = hold_out(Peek(("a", "b"), {"train": labels}, {"train": groups}), config, 7)
    assert np.bincount(labels[validation]).tolist() == [9, 3]
    labels[0] = 1
    with pytest.raises(ConfigurationError, match=r"data\.stratify: expected recordings of one class each"):
        hold_out(Peek(("a", "b"), {"train": labels}, {"train": groups}), config, 7)


# --- passes by weight -----------------------------------------------------------------------------------------------

some_weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=80)


def passes(weights: list[float], seed: int = 7, labels: list[int] | None = None) -> WeightedPasses:
    of_file = as_labels([0] * len(weights) if labels is None else labels)
    return WeightedPasses(np.arange(len(weights)), of_file, np.array(weights), seed)


@settings(deadline=None)
@given(some_weights)
def test_expected_draws_are_in_proportion_and_add_up_exactly(values: list[float]) -> None:
    assume(any(values))
    weights = np.array(values)
    expected = expected_draws(weights)
    assert expected.sum() == len(weights) * ONE and expected.min() >= 0
    exact = weights / weights.sum() * len(weights)
    np.testing.assert_allclose(expected / ONE, exact, rtol=1e-12, atol=2 / ONE)


@settings(deadline=None)
@given(some_weights, seeds, st.integers(0, 10**9))
def test_an_example_comes_as_often_as_its_weight_says(values: list[float], seed: int, pass_number: int) -> None:
    assume(any(values))
    order = passes(values, seed).order(pass_number)
    counts = np.bincount(order % len(values), minlength=len(values))
    expected = expected_draws(np.array(values))
    assert len(order) == len(values)
    assert np.all(counts >= expected // ONE) and np.all(counts <= -(-expected // ONE))


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=100), seeds, st.integers(0, 1000))
def test_balanced_classes_come_equally_often(values: list[int], seed: int, pass_number: int) -> None:
    labels = as_labels(values)
    members = np.arange(len(labels))
    weights = weights_of(DataConfig(sampling="balanced"), peek(labels), members)
    assert weights is not None
    order = WeightedPasses(members, labels, weights, seed).order(pass_number)
    counts = np.bincount(labels[order % len(labels)], minlength=6)
    share = len(labels) / len(set(values))
    assert {np.floor(share), np.ceil(share)} >= {int(counts[label]) for label in set(values)}


def test_equal_weights_draw_each_example_once() -> None:
    """Also where a share such as 1/7 has no exact representation."""
    for weight in (1.0, 1 / 7, 1e-300, 3e300):
        order = passes([weight] * 1003).order(5)
        assert sorted(order.tolist()) == list(range(1003))


def test_examples_drawn_less_than_once_take_turns() -> None:
    """Class 0 comes a tenth as often as there are examples of it: ten passes show most of them, twenty all of them."""
    labels = [0] * 900 + [1] * 100
    made = passes([1 / 9] * 900 + [9.0] * 100, labels=labels)
    drawn = [set((made.order(number) % 1000).tolist()) & set(range(900)) for number in range(20)]
    assert {len(one) for one in drawn} == {100}
    assert len(set.union(*drawn[:9])) > 700  # by chance, 1 - (8/9)^9 = 65% of 900 would be 588
    assert len(set.union(*drawn)) == 900


def test_repeats_are_numbered() -> None:
    order = passes([3.0, 0.5, 0.5, 0.0]).order(0)
    assert sorted(order.tolist())[0] == 0
    assert {0, 4, 8} < set(order.tolist())
    assert len(set(order.tolist())) == 4


def test_passes_depend_on_seed_and_number_alone() -> None:
    weights = [1.0, 2.0, 3.0] * 40
    order = passes(weights).order(3).tolist()
    assert passes(weights).order(3).tolist() == order
    assert passes(weights).order(4).tolist() != order
    assert passes(weights, seed=8).order(3).tolist() != order
    assert passes([1.0, 2.0, 3.0, 0.5, 0.5, 1.0]).order(0).tolist() == [4, 8, 2, 14, 0, 1]
    assert passes(weights).order(FILE_ORDER).tolist() == list(range(120))


def test_draws_are_random() -> None:
    """Over seeds, whether an example comes says nothing of another one of its class."""
    came = np.array([np.bincount(passes([0.5] * 8 + [4.0], seed).order(0) % 9, minlength=9) for seed in range(2000)])
    together = came[:, 0] * came[:, 1] > 0
    alone = (came[:, 0] > 0).mean()
    assert abs(alone - 0.5625) < 0.05
    assert 0.2 < together.mean() < alone


# --- whose weights --------------------------------------------------------------------------------------------------


def peek(labels: np.ndarray) -> Peek:
    classes = tuple(f"c{number}" for number in range(6))
    return Peek(classes, {"train": labels, "test": labels[:0]})


def test_a_table_weighs_the_examples_of_classes() -> None:
    labels = as_labels([0, 0, 1, 2, 2, 2])
    weights = weights_of(DataConfig(sampling={"c1": 4, "c2": 0}), peek(labels), np.array([0, 2, 3, 4]))
    assert weights is not None and weights.tolist() == [1, 4, 0, 0]
    assert weights_of(DataConfig(), peek(labels), np.arange(6)) is None


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"c11": 2.0}, 'data.sampling: there is no class "c11"; expected one of c0, c1,.*Did you mean "c1"'),
        ({"c0": 0, "c1": 0, "c5": 2}, "expected a weight above 0 for a class that has training examples; found c5"),
        ("weights", 'data of format "digits" have none'),
    ],
)
def test_weights_that_do_not_fit_are_refused(sampling: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        weights_of(DataConfig(sampling=sampling), peek(as_labels([0, 1, 1])), np.arange(3))


@pytest.mark.parametrize("sampling", ["balanced", {"c0": 2.0}])
def test_targets_have_no_classes_to_weigh(sampling: Any) -> None:
    labels = as_labels([0, 0, 0])
    of_targets = Peek((), {"train": labels, "test": labels[:0]}, targets=2)
    with pytest.raises(ConfigurationError, match=r"data.sampling = .* have targets, numbers in place of classes"):
        weights_of(DataConfig(sampling=sampling), of_targets, np.arange(3))
    with pytest.raises(ConfigurationError, match=r"data.stratify = true, but these examples have targets"):
        hold_out(of_targets, DataConfig(validation=0.5, stratify=True), 7)


@pytest.fixture
def archive(tmp_path: Path) -> Callable[..., DataConfig]:
    def write(weights: Any = None, **config: Any) -> DataConfig:
        arrays = {"x_train": pattern(40), "y_train": (np.arange(40) < 4).astype(np.int32), "x_test": pattern(10)}
        more = {} if weights is None else {"weights": weights}
        np.savez(tmp_path / "d.npz", **arrays, y_test=np.zeros(10, np.int32), **more)
        return DataConfig(format="npz", source=str(tmp_path / "d.npz"), scale="none", **config)

    return write


def opened(config: DataConfig) -> OpenDataSet:
    return OpenDataSet("d", config, open_source(config, Path(config.source), (4, 4, 1)), 7, 1 << 20)


def gathered(data: OpenDataSet, split: str, pass_number: int) -> tuple[np.ndarray, np.ndarray]:
    count = data.examples[split]
    images, labels = np.zeros((count, 16), np.float32), np.zeros(count, np.int32)
    data.gather(Range(split, pass_number, 0, count), images, labels)
    return images, labels


@pytest.mark.parametrize(
    ("weights", "error", "said"),
    [
        (None, ConfigurationError, r"needs an array weights \[40\]; found x_train"),
        (np.ones(39), DamagedDataError, r"expected one number for each of 40 training examples, found float64 \[39\]"),
        (np.full(40, -1), ConfigurationError, "expected weights of at least 0, found -1, and 40 such in all"),
        (np.full(40, np.nan), ConfigurationError, "expected weights of at least 0, found nan"),
        (np.zeros(40), ConfigurationError, "expected a weight above 0"),
    ],
)
def test_bad_weights_of_an_archive_are_refused(
    archive: Callable[..., DataConfig], weights: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        opened(archive(weights, sampling="weights"))


def test_an_archives_own_weights(archive: Callable[..., DataConfig]) -> None:
    data = opened(archive((np.arange(40) == 11).astype(int), sampling="weights"))
    images, _ = gathered(data, "train", 0)
    assert set(images[:, 0].tolist()) == {11}


def test_evaluations_and_the_order_of_files_are_not_sampled(archive: Callable[..., DataConfig]) -> None:
    data = opened(archive(sampling="balanced", validation=0.25))
    _, labels = gathered(data, "train", 0)
    assert np.bincount(labels).tolist() == [15, 15]
    for split, pass_number in (("train", FILE_ORDER), ("validation", 0), ("test", 0)):
        images, _ = gathered(data, split, pass_number)
        assert len(set(images[:, 0].tolist())) == len(images) == data.examples[split]


def test_an_example_that_comes_again_is_moved_otherwise(archive: Callable[..., DataConfig]) -> None:
    weights = (np.arange(40) == 11).astype(int)
    images, _ = gathered(opened(archive(weights, sampling="weights", translate=1)), "train", 0)
    assert 4 < len(np.unique(images, axis=0)) <= 9  # of nine ways to move it

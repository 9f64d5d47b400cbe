"""Metrics from counts: by hand, and beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.launch import metrics
from adamctl.launch.metrics import ClassMetrics, Confused, Confusion, GroupSums, in_top, mean_of, named

BY_HAND = Confusion.of(np.array([[5, 0, 1], [2, 3, 0], [2, 0, 0]], np.int64))


def drawn(examples: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns outputs and labels of which about a half are predicted; the last class is no example's label."""
    random = np.random.default_rng(21)
    labels = random.integers(0, classes - 1, examples, np.int32)
    outputs = random.random((examples, classes), np.float32)
    outputs[np.arange(examples), labels] += np.float32(0.5)
    return outputs, labels


def counted(outputs: np.ndarray, labels: np.ndarray, batch: int) -> Confusion:
    counts = Confusion(outputs.shape[1])
    for start in range(0, len(labels), batch):
        counts.add(outputs[start : start + batch], labels[start : start + batch])
    return counts


def test_classes_by_hand() -> None:
    cat, dog, owl = BY_HAND.of_classes(("cat", "dog", "owl"))
    assert cat == ClassMetrics("cat", examples=6, predicted=9, correct=5)
    assert (cat.precision, cat.recall, cat.f1) == (5 / 9, 5 / 6, 10 / 15)
    assert (dog.precision, dog.recall, dog.f1) == (1.0, 3 / 5, 6 / 8)
    assert (owl.precision, owl.recall, owl.f1) == (0.0, 0.0, 0.0)


def test_a_ratio_of_0_to_0_is_none() -> None:
    assert (ClassMetrics("a", 0, 2, 0).recall, ClassMetrics("a", 2, 0, 0).precision) == (None, None)
    assert ClassMetrics("a", 0, 0, 0).f1 is None
    assert ClassMetrics("a", 2, 0, 0).f1 == 0.0


def test_rows_are_labels_and_columns_predictions() -> None:
    counts = counted(np.eye(3, dtype=np.float32)[[1, 1, 2]], np.array([0, 0, 2], np.int32), 3)
    assert counts.matrix().tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 1]]
    assert [part.tolist() for part in counts.cells()] == [[0, 2], [1, 2], [2, 1]]


def test_of_equal_outputs_the_first_is_larger() -> None:
    level = np.zeros((4, 4), np.float32)
    labels = np.arange(4, dtype=np.int32)
    assert [in_top(level, labels, k) for k in range(5)] == [0, 1, 2, 3, 4]
    assert counted(level, labels, 4).matrix()[:, 0].tolist() == [1, 1, 1, 1]


def test_top_k_of_outputs_that_are_no_numbers() -> None:
    assert in_top(np.full((2, 3), np.nan, np.float32), np.array([0, 1], np.int32), 2) == 0


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_top_k_beside_scikit_learn(k: int) -> None:
    peer = pytest.importorskip("sklearn.metrics")
    outputs, labels = drawn(500, 10)
    expected = peer.top_k_accuracy_score(labels, outputs, k=k, normalize=False, labels=range(10))
    assert in_top(outputs, labels, k) == expected < 500


@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_confusion_beside_scikit_learn(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_PENDING_MAX", 100)
    peer = pytest.importorskip("sklearn.metrics")
    outputs, labels = drawn(300, 7)
    assert np.array_equal(
        counted(outputs, labels, batch).matrix(), peer.confusion_matrix(labels, outputs.argmax(axis=1), labels=range(7))
    )


def test_precision_recall_and_f1_beside_scikit_learn() -> None:
    peer = pytest.importorskip("sklearn.metrics")
    outputs, labels = drawn(300, 7)
    outputs[:, 2] = -1  # a class that is never predicted
    found = counted(outputs, labels, 50).of_classes(())
    expected = peer.precision_recall_fscore_support(
        labels, outputs.argmax(axis=1), labels=range(7), zero_division=np.nan
    )
    ours = np.array([(one.precision, one.recall, one.f1, one.examples) for one in found], np.float64).T
    np.testing.assert_allclose(ours, expected, rtol=1e-15)
    assert np.isnan(ours[0, 2]) and np.isnan(ours[1, 6])


def test_means_beside_scikit_learn() -> None:
    """Over the classes that are labels: the last one is only predicted, one is never."""
    peer = pytest.importorskip("sklearn.metrics")
    outputs, labels = drawn(300, 7)
    outputs[:, 2] = -1
    mean = mean_of(counted(outputs, labels, 50).of_classes(()))
    predicted = outputs.argmax(axis=1)
    assert mean is not None and mean.classes == 6 and (predicted == 6).any()
    kinds = {"average": "macro", "labels": range(6), "zero_division": 0}
    expected = peer.precision_recall_fscore_support(labels, predicted, **kinds)[:3]
    np.testing.assert_allclose(mean[1:], expected, rtol=1e-14)
    with pytest.warns(UserWarning, match="not in y_true"):
        peers = peer.balanced_accuracy_score(labels, predicted)
    assert mean.balanced_accuracy == pytest.approx(peers, rel=1e-14)


def test_without_examples_there_is_no_mean() -> None:
    assert mean_of(Confusion(3).of_classes(())) is None


def test_very_many_classes_take_the_memory_of_their_cells() -> None:
    """A matrix of this size would be 512 MiB."""
    classes, labels = 8192, np.repeat(np.arange(0, 8192, 512, dtype=np.int32), 10)
    counts = Confusion(classes)
    for start in range(0, len(labels), 40):
        outputs = np.zeros((40, classes), np.float32)
        outputs[:, 8191] = 1
        counts.add(outputs, labels[start : start + 40])
    found, predicted, count = counts.cells()
    assert (found.tolist(), set(predicted.tolist()), set(count.tolist())) == ([*range(0, 8192, 512)], {8191}, {10})
    assert counts.most_confused(1) == [Confused(0, 8191, 10, 10)]


def test_pairs_that_are_confused_most() -> None:
    assert BY_HAND.most_confused(10) == [Confused(1, 0, 2, 5), Confused(2, 0, 2, 2), Confused(0, 2, 1, 6)]
    assert BY_HAND.most_confused(1) == [Confused(1, 0, 2, 5)]
    assert Confusion.of(np.diag([3, 4])).most_confused(10) == []


def test_classes_without_a_name_have_their_number() -> None:
    assert named(("cat",), 3) == ("cat", "1", "2")
    assert named(("cat", "dog", "owl"), 2) == ("cat", "dog")


def test_a_group_is_of_the_class_with_the_largest_sum_of_logarithms() -> None:
    """Two of three frames of group 4 are for class 1, but its third is far surer of class 0."""
    probabilities = np.array([[0.4, 0.6], [0.1, 0.9], [0.45, 0.55], [0.99, 0.01]], np.float32)
    groups, labels = np.array([4, 9, 4, 4]), np.array([0, 1, 0, 0], np.int32)
    sums = GroupSums(groups, labels, 2)
    assert sums.has_one_label_each
    sums.add(0, probabilities[:1])
    sums.add(1, probabilities[1:])
    assert sums.result() == {"groups": 2, "correct": 2, "top1": 1.0}
    other = GroupSums(groups, np.array([1, 1, 1, 1], np.int32), 2)
    other.add(0, probabilities)
    assert other.result() == {"groups": 2, "correct": 1, "top1": 0.5}


def test_a_probability_of_zero_is_no_veto() -> None:
    sums = GroupSums(np.zeros(60, np.int64), np.zeros(60, np.int32), 2)
    sums.add(0, np.array([[0, 1]] + [[0.97, 0.03]] * 59, np.float32))
    assert sums.result()["correct"] == 1


def test_groups_of_several_labels_are_told() -> None:
    assert not GroupSums(np.array([1, 1]), np.array([0, 1], np.int32), 2).has_one_label_each

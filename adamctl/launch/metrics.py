"""Metrics of a classifier from counts alone: top-k, confusion matrix, and precision, recall and F1 of each class.

With c[t, p] the number of examples of label t that were predicted as p: the precision of class i is
c[i, i] / sum_t c[t, i], its recall c[i, i] / sum_p c[i, p], and F1 their harmonic mean,
2 c[i, i] / (sum_t c[t, i] + sum_p c[i, p]) (van Rijsbergen 1979, chapter 7). A ratio of 0 to 0 is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Outputs = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Groups = NDArray[np.int64]

PROBABILITY_MIN: Final = 1e-30
"""Floor of a probability before its logarithm: one frame that is sure and wrong does not decide alone."""


class ClassMetrics(NamedTuple):
    """Metrics of one class: `examples` have its label, `predicted` were taken for it, `correct` are both."""

    name: str
    examples: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float | None:
        """The share of `predicted` that is correct; None if nothing was predicted as this class."""
        return _ratio(self.correct, self.predicted)

    @property
    def recall(self) -> float | None:
        """The share of `examples` that is correct; None if there are none."""
        return _ratio(self.correct, self.examples)

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; None if the class occurs neither as label nor as prediction."""
        return _ratio(2 * self.correct, self.predicted + self.examples)


@dataclass(frozen=True)
class Confused:
    """A pair of classes: `count` examples of `label` were taken for `predicted`, of `examples` with that label."""

    label: int
    predicted: int
    count: int
    examples: int


def in_top(outputs: Outputs, labels: Labels, k: int) -> int:
    """Returns how many examples have their label among the k largest of their outputs [n, classes].

    Of equal outputs the first counts as larger, as for top-1. An output that is not a number is in no top.
    """
    own = outputs[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(outputs.shape[1]) < labels[:, None]
    ahead = np.count_nonzero((outputs > own) | ((outputs == own) & earlier), axis=1)
    return int(np.count_nonzero((ahead < k) & ~np.isnan(own[:, 0])))


class GroupSums:
    """Top-1 of groups of examples, such as the frames of a recording, where all examples of a group have one label.

    A group is of the class with the largest sum of logarithms of its examples' probabilities: as if these were
    independent, and classes equally frequent.
    """

    def __init__(self, groups: Groups, labels: Labels, classes: int) -> None:
        """`groups` and `labels` [examples] of a whole split, which `add` is given in this order."""
        _, first, self._of_example = np.unique(groups, return_index=True, return_inverse=True)
        self._labels = labels[first]
        self.has_one_label_each = bool((labels == self._labels[self._of_example]).all())
        self._sums = np.zeros((len(first), classes))

    def add(self, start: int, probabilities: Outputs) -> None:
        """Adds examples from `start` on, [n, classes]."""
        logarithms = np.log(np.maximum(probabilities, PROBABILITY_MIN), dtype=np.float64)
        np.add.at(self._sums, self._of_example[start : start + len(probabilities)], logarithms)

    def result(self) -> dict[str, Any]:
        """Returns `groups`, `correct` and `top1`. Of equal sums the first is taken."""
        correct = int(np.count_nonzero(np.argmax(self._sums, axis=1) == self._labels))
        return {"groups": len(self._labels), "correct": correct, "top1": correct / len(self._labels)}


def empty_confusion(classes: int) -> Counts:
    """Returns a confusion matrix [label, predicted] without examples."""
    return np.zeros((classes, classes), np.int64)


def count_confusion(counts: Counts, outputs: Outputs, labels: Labels) -> None:
    """Adds a batch, outputs [n, classes] and labels [n], to a confusion matrix. Of equal outputs the first is taken."""
    np.add.at(counts, (labels, np.argmax(outputs, axis=1)), 1)


def of_classes(counts: Counts, names: Sequence[str]) -> list[ClassMetrics]:
    """Returns the metrics of each class of a confusion matrix; a class that has no name gets its number."""
    columns = (counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist(), np.diagonal(counts).tolist())
    return [ClassMetrics(*row) for row in zip(named(names, len(counts)), *columns, strict=True)]


def named(names: Sequence[str], classes: int) -> tuple[str, ...]:
    """Returns a name for each of so many classes: the data's, or its number if the data have no name for it."""
    return (*names[:classes], *map(str, range(len(names), classes)))


def most_confused(counts: Counts, pairs: int) -> list[Confused]:
    """Returns up to `pairs` pairs of different classes, those of most examples first; of equal ones in order."""
    labels, predicted = np.nonzero(counts)
    wrong = labels != predicted
    labels, predicted = labels[wrong], predicted[wrong]
    found = counts[labels, predicted]
    order = np.argsort(-found, kind="stable")[:pairs]
    examples = counts.sum(axis=1)
    return [
        Confused(int(labels[one]), int(predicted[one]), int(found[one]), int(examples[labels[one]])) for one in order
    ]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None

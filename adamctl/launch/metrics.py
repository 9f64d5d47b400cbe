"""Metrics of a classifier from counts alone: top-k, confusion matrix, and precision, recall and F1 of each class.

With c[t, p] the number of examples of label t that were predicted as p: the precision of class i is
c[i, i] / sum_t c[t, i], its recall c[i, i] / sum_p c[i, p], and F1 their harmonic mean,
2 c[i, i] / (sum_t c[t, i] + sum_p c[i, p]) (van Rijsbergen 1979, chapter 7). A ratio of 0 to 0 is None.

Balanced accuracy is the mean recall of the classes that have examples (Brodersen et al. 2010): top-1 as if all classes
had as many.
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

_PENDING_MAX: Final = 1 << 16  # examples that wait to be counted
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


class MeanMetrics(NamedTuple):
    """Means over `classes` classes that have examples, each counting the same; a precision of 0 to 0 counts as 0."""

    classes: int
    precision: float
    recall: float
    f1: float

    @property
    def balanced_accuracy(self) -> float:
        return self.recall


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


class Confusion:
    """A confusion matrix of `classes` classes, of which only cells with examples take memory."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._cells = np.empty(0, np.int64)  # label * classes + predicted, ascending
        self._counts = np.empty(0, np.int64)
        self._pending: list[NDArray[np.int64]] = []

    @classmethod
    def of(cls, counts: Counts) -> Confusion:
        """Returns the confusion with these counts [label, predicted]."""
        made = cls(len(counts))
        made._cells = np.flatnonzero(counts)
        made._counts = counts.reshape(-1)[made._cells]
        return made

    def add(self, outputs: Outputs, labels: Labels) -> None:
        """Counts a batch, outputs [n, classes] and labels [n]. Of equal outputs the first is taken."""
        self._pending.append(labels.astype(np.int64) * self.classes + np.argmax(outputs, axis=1))
        if sum(map(len, self._pending)) > _PENDING_MAX:
            self._merge()

    def cells(self) -> tuple[Counts, Counts, Counts]:
        """Returns label, predicted and count of each cell that is not 0, by label and then by prediction."""
        self._merge()
        labels, predicted = np.divmod(self._cells, self.classes)
        return labels, predicted, self._counts

    def matrix(self) -> Counts:
        """Returns the whole matrix [label, predicted]."""
        counts = np.zeros((self.classes, self.classes), np.int64)
        labels, predicted, found = self.cells()
        counts[labels, predicted] = found
        return counts

    def of_classes(self, names: Sequence[str]) -> list[ClassMetrics]:
        """Returns the metrics of each class; a class that has no name gets its number."""
        labels, predicted, found = self.cells()
        correct = np.where(labels == predicted, found, 0)
        columns = ((labels, found), (predicted, found), (labels, correct))
        sums = [np.bincount(place, count, self.classes).astype(np.int64).tolist() for place, count in columns]
        return [ClassMetrics(*row) for row in zip(named(names, self.classes), *sums, strict=True)]

    def most_confused(self, pairs: int) -> list[Confused]:
        """Returns up to `pairs` pairs of different classes, those of most examples first; of equal ones in order."""
        labels, predicted, found = self.cells()
        examples = np.bincount(labels, found, self.classes).astype(np.int64)
        wrong = np.flatnonzero(labels != predicted)
        order = wrong[np.argsort(-found[wrong], kind="stable")][:pairs]
        columns = (part[order].tolist() for part in (labels, predicted, found, examples[labels]))
        return [Confused(*row) for row in zip(*columns, strict=True)]

    def _merge(self) -> None:
        if not self._pending:
            return
        cells = np.concatenate([self._cells, *self._pending])
        counts = np.concatenate([self._counts, np.ones(len(cells) - len(self._cells), np.int64)])
        self._pending = []
        self._cells, places = np.unique(cells, return_inverse=True)
        merged = np.zeros(len(self._cells), np.int64)
        np.add.at(merged, places, counts)
        self._counts = merged


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


def mean_of(classes: Sequence[ClassMetrics]) -> MeanMetrics | None:
    """Returns the means over the classes that have examples; None if none has."""
    counted = [one for one in classes if one.examples]
    if not counted:
        return None
    columns = [[value or 0.0 for value in (one.precision, one.recall, one.f1)] for one in counted]
    return MeanMetrics(len(counted), *(sum(column) / len(counted) for column in zip(*columns, strict=True)))


def named(names: Sequence[str], classes: int) -> tuple[str, ...]:
    """Returns a name for each of so many classes: the data's, or its number if the data have no name for it."""
    return (*names[:classes], *map(str, range(len(names), classes)))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None

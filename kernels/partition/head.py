"""The loss of a network whose last stage is cut: what its partitions exchange, and the error of each part.

A head usually gathers all outputs of the last layer: every part then computes the whole loss, and keeps its part of
the error. Parts of a large softmax under the cross entropy exchange four numbers per example: the largest logit, the
sum of exponentials below it, where it is, and the label's logit. Yes-or-no outputs (DistBelief 5) need nothing of each
other for their error; parts exchange numbers of that kind only to count loss and correct examples.
`adamctl.model.partition.plan.head_kind` says which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import Backend, compiled_if
from adamctl.kernels.layers.activations import activate
from adamctl.kernels.layers.losses import PROBABILITY_MIN, Answers, Labels, Loss
from adamctl.kernels.layers.softmax import Softmax, softmax, softmax_error
from adamctl.kernels.native import Call, NativeCall, Result
from adamctl.kernels.operation import Array, Operation
from adamctl.kernels.partition.memory import STATISTICS
from adamctl.kernels.partition.regions import BlockMove, Held

LossMade = tuple[float, int]
"""Summed loss and correctly classified examples of a batch."""


class GatheredHead:
    """The loss of outputs that were gathered from all parts.

    Attributes:
        outputs: takes those of the last layer, [batch, units], from all parts.
    """

    def __init__(self, head: Operation, loss: Loss, batch: int, own: Held, backend: Backend) -> None:
        """`own` takes the error at this part's outputs."""
        units = head.output_shape[0]
        self.outputs = np.zeros((batch, units), np.float32)
        self._softmax = isinstance(head, Softmax)
        self._at_logits = not isinstance(head, Softmax) or head.error_at_logits
        self._loss, self._backend = loss, backend
        self._error, self._row = np.zeros((batch, units), np.float32), np.zeros((batch, 1), np.float32)
        self._no_bias = np.zeros(units, np.float32)
        self._keep = BlockMove(own, Held(self._error, ((0, units),)), own.box)

    def make(self, labels: Answers) -> LossMade:
        """Computes the loss of the gathered outputs, and this part's error."""
        self.finish()
        made = self._loss.backward(self.outputs, labels, self._error)
        if not self._at_logits:
            softmax_error(self.outputs, self._error)
        self._keep.make()
        return made

    def evaluate(self, labels: Answers) -> LossMade:
        """Computes the loss alone."""
        self.finish()
        return self._loss.evaluate(self.outputs, labels)

    def finish(self) -> None:
        """Turns gathered logits into probabilities, if the head is a softmax."""
        compiled = compiled_if(self._backend, "losses")
        if self._softmax and compiled is not None:
            compiled.bias_softmax(self.outputs, self._no_bias)
        elif self._softmax:
            softmax(self.outputs, self._row)

    def native(self, labels: Answers, result: Result) -> list[Call] | None:
        """Returns `make` as native calls; `result`: see `Loss.native_backward`."""
        compiled = compiled_if(self._backend, "losses")
        loss = self._loss.native_backward(self.outputs, labels, self._error, result)
        keep = self._keep.native(self._backend)
        if compiled is None or loss is None or keep is None:
            return None
        finish, to_logits = list[Call](), list[Call]()
        if self._softmax:
            finish = [NativeCall(compiled.bias_softmax, (self.outputs, self._no_bias))]
        if not self._at_logits:
            to_logits = [NativeCall(compiled.softmax_error, (self.outputs, self._error))]
        return [*finish, *loss, *to_logits, *keep]


class SplitHead:
    """What is common to losses of which each part has some units, and a table of numbers that it shows to the others.

    Attributes:
        statistics: takes those of this part, [batch, 4], float64.
    """

    kernels: ClassVar[str]

    def __init__(
        self, logits: Held, error: Array, units: int, statistics: NDArray[np.float64], backend: Backend,
        class_weights: Array | None = None,
    ) -> None:  # fmt: skip
        """`logits`, `error`: of this part's units; `units`: of the whole head; `class_weights`: see `Loss`."""
        self.statistics = statistics
        self._logits, self._error, self._units = logits.array, error, units
        self._first = logits.box[0][0]
        self._joined = np.zeros((len(logits.array), STATISTICS))
        self._compiled = compiled_if(backend, self.kernels)
        self._class_weights = class_weights
        self._makers = self._compiled if class_weights is None else compiled_if(backend, "weighted_losses")

    @property
    def _weights(self) -> tuple[Array, ...]:
        """What kernels of weighted losses take after the labels."""
        return () if self._class_weights is None else (self._class_weights,)

    def _check(self, labels: Labels) -> None:
        """Raises ValueError for a label out of range."""
        if len(labels) and (labels.min() < 0 or labels.max() >= self._units):
            raise ValueError(f"labels: expected values in [0, {self._units}); found {labels.min()} to {labels.max()}")


class ExchangedHead(SplitHead):
    """The cross entropy of a softmax of which this part has some units."""

    kernels = "heads"

    def find(self, labels: Labels) -> None:
        """Writes this part's statistics. Raises ValueError for a label out of range."""
        self._check(labels)
        if self._compiled is not None:
            self._compiled.gather_statistics(
                self._logits, labels.astype(np.int32), self._first, self._units, self.statistics
            )
            return
        own, rows = self._logits, np.arange(len(labels))
        self.statistics[:, 0] = own.max(axis=1)
        self.statistics[:, 1] = np.exp((own - own.max(axis=1, keepdims=True)).astype(np.float64)).sum(axis=1)
        self.statistics[:, 2] = self._first + own.argmax(axis=1)
        places = labels - self._first
        inside = (places >= 0) & (places < own.shape[1])
        self.statistics[:, 3] = -np.inf
        self.statistics[inside, 3] = own[rows[inside], places[inside]]

    def make(self, labels: Labels, of_all: Sequence[NDArray[np.float64]]) -> LossMade:
        """Computes the loss and this part's error from the statistics of all parts, in their order."""
        joined = self._join(of_all)
        largest, total, place, label = joined.T
        probabilities = np.exp(label - largest) / total
        losses = -np.log(np.maximum(probabilities, PROBABILITY_MIN))
        self._error[...] = np.exp(self._logits - largest[:, None]) / total[:, None]
        places = labels - self._first
        inside = (places >= 0) & (places < self._logits.shape[1])
        self._error[np.arange(len(labels))[inside], places[inside]] -= 1
        self._error /= max(len(labels), 1)
        if self._class_weights is not None:
            losses *= self._class_weights[labels]
            self._error *= self._class_weights[labels][:, None]
        return float(losses.sum()), int(np.count_nonzero(place == labels))

    def _join(self, of_all: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        joined = of_all[0].copy()
        for other in of_all[1:]:
            larger = other[:, 0] > joined[:, 0]
            largest = np.maximum(joined[:, 0], other[:, 0])
            joined[:, 1] = joined[:, 1] * np.exp(joined[:, 0] - largest) + other[:, 1] * np.exp(other[:, 0] - largest)
            joined[larger, 2] = other[larger, 2]
            joined[:, 3] = np.maximum(joined[:, 3], other[:, 3])
            joined[:, 0] = largest
        return joined

    def native_find(self, labels: NDArray[np.int32]) -> list[Call] | None:
        """Returns `find` as a native call; a label out of range is found by `native_make` of every part."""
        if self._compiled is None:
            return None
        arguments = (self._logits, labels, self._first, self._units, self.statistics)
        return [NativeCall(self._compiled.gather_statistics, arguments)]

    def native_make(
        self, labels: NDArray[np.int32], of_all: Sequence[NDArray[np.float64]], result: Result
    ) -> list[Call] | None:
        """Returns `make` as native calls; a label out of range makes the second word of `result` -1."""
        if self._compiled is None:
            return None
        joins: list[Call] = [
            NativeCall(self._compiled.join_statistics, (statistics, self._joined, int(not number)))
            for number, statistics in enumerate(of_all)
        ]
        arguments = (
            self._logits, labels, *self._weights, self._first, self._units, self._joined, self._error, PROBABILITY_MIN
        )  # fmt: skip
        return [*joins, NativeCall(self._makers.split_cross_entropy_error, arguments, result)]


class SeparateHead(SplitHead):
    """The loss of yes-or-no outputs of which this part has some units.

    Its statistics are the largest logit, the loss, and where the largest is.
    """

    kernels = "logistic"

    def make(self, labels: Labels) -> None:
        """Computes this part's error, and its statistics. Raises ValueError for a label out of range."""
        self._check(labels)
        if self._compiled is not None:
            self._makers.split_logistic_error(
                self._logits, labels.astype(np.int32), *self._weights, self._first, self._units, self.statistics,
                self._error,
            )  # fmt: skip
            return
        own, rows = self._logits, np.arange(len(labels))
        places = labels - self._first
        inside = (places >= 0) & (places < own.shape[1])
        logits = own.astype(np.float64)
        losses = (np.maximum(logits, 0) + np.log1p(np.exp(-np.abs(logits)))).sum(axis=1)
        losses[inside] -= logits[rows[inside], places[inside]]
        self._error[...] = own
        activate("sigmoid", self._error)
        self._error[rows[inside], places[inside]] -= 1
        self._error /= max(len(labels), 1)
        if self._class_weights is not None:
            losses *= self._class_weights[labels]
            self._error *= self._class_weights[labels][:, None]
        self.statistics[:, 0], self.statistics[:, 1] = own.max(axis=1), losses
        self.statistics[:, 2], self.statistics[:, 3] = self._first + own.argmax(axis=1), 0

    def count(self, labels: Labels, of_all: Sequence[NDArray[np.float64]]) -> LossMade:
        """Returns the loss and the correct examples of all parts' statistics, in the order of parts."""
        joined = of_all[0].copy()
        for other in of_all[1:]:
            joined[:, 1] += other[:, 1]
            larger = other[:, 0] > joined[:, 0]
            joined[larger, 0], joined[larger, 2] = other[larger, 0], other[larger, 2]
        return float(sum(joined[:, 1].tolist())), int(np.count_nonzero(joined[:, 2] == labels))

    def native_make(self, labels: NDArray[np.int32], result: Result) -> list[Call] | None:
        """Returns `make` as a native call; a label out of range makes the second word of `result` -1."""
        if self._compiled is None:
            return None
        arguments = (
            self._logits, labels, *self._weights, self._first, self._units, self.statistics, self._error
        )  # fmt: skip
        return [NativeCall(self._makers.split_logistic_error, arguments, result)]

    def native_count(
        self, labels: NDArray[np.int32], of_all: Sequence[NDArray[np.float64]], result: Result
    ) -> list[Call] | None:
        """Returns `count` as native calls; `result` [2] takes the float64 loss and the count."""
        if self._compiled is None:
            return None
        joins: list[Call] = [
            NativeCall(self._compiled.join_logistic, (statistics, self._joined, int(not number)))
            for number, statistics in enumerate(of_all)
        ]
        return [*joins, NativeCall(self._compiled.count_logistic, (self._joined, labels), result)]

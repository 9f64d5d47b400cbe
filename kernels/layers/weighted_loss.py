"""A loss in which each example counts as much as its class weighs, to make up for classes with few examples.

The loss of a batch is the mean over its n examples of w[label] times the plain loss, and its derivative that of this.
PyTorch's `CrossEntropyLoss(weight)` divides by the sum of the batch's weights instead. Here an example's part of the
gradient does not depend on which others share its batch, so batches may be cut over threads, partitions and workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array
from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.layers.losses import Answers, Loss, LossResult
from adamctl.kernels.native import Call, NativeCall, Result


class WeightedLoss(Loss):
    """A loss times `class_weights` [units]; `evaluate` stays that of the plain loss."""

    class_weights: Array

    def __init__(self, plain: Loss, class_weights: Array, backend: str | None = None) -> None:
        self._plain, self.class_weights = plain, class_weights
        self._compiled = compiled_if(choose(backend), "weighted_losses")
        self._kernel = None if self._compiled is None else getattr(self._compiled, plain.compiled_name)

    @property
    def unweighted(self) -> Loss:
        return self._plain

    def evaluate(self, outputs: Array, labels: Answers) -> LossResult:
        """Returns the plain loss of a batch: evaluations of one model compare, whatever it was trained with."""
        return self._plain.evaluate(outputs, labels)

    def finish(self, outputs: Array) -> Array:
        return self._plain.finish(outputs)

    def native_backward(self, outputs: Array, labels: Answers, error: Array, result: Result) -> list[Call] | None:
        if self._kernel is None:
            return None
        return [NativeCall(self._kernel, (outputs, labels, self.class_weights, error), result)]

    def _run_compiled(self, outputs: Array, labels: Answers, error: Array | None) -> tuple[float, int]:
        assert self._kernel is not None and error is not None, "evaluations are those of the plain loss"
        return self._kernel(outputs, labels, self.class_weights, error)  # type: ignore[no-any-return]

    def _losses(self, outputs: Array, labels: Answers, error: Array | None) -> NDArray[np.float64]:
        losses, weights = self._plain._losses(outputs, labels, error), self.class_weights[labels]
        if error is not None:
            error *= weights[:, None]
        return losses * weights

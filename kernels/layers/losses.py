"""The losses that training minimises: the mean over a batch and its derivative, from integer class labels.

Cross entropy of a softmax: mean of -ln p[label]; its derivative at the logits is (p - onehot) / n. Squared
error (Adam 2.2): mean of 0.5 * sum_i (t_i - a_i)^2 with one-hot targets t; its derivative at the outputs is
(a - t) / n. Logistic (DistBelief 5's one-vs-all classifiers): mean of the summed cross entropies of yes-or-no outputs
with one-hot targets, sum_i ln(1 + exp(z_i)) - z[label]; its derivative at the logits z is (p - onehot) / n, p_i = 1 /
(1 + exp(-z_i)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array
from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.layers.activations import activate
from adamctl.kernels.native import Call, NativeCall, Result

Labels = NDArray[np.int32] | NDArray[np.int64]
Answers: TypeAlias = NDArray[Any]
"""What outputs are compared with: `Labels` [n], or float32 targets [n, k]."""
LABEL_TYPES = frozenset(np.dtype(name).char for name in ("int32", "int64"))
PROBABILITY_MIN = float(np.finfo(np.float32).tiny)


class LossResult(NamedTuple):
    """A batch's summed loss and how many examples had the largest output at their label (the first of equals)."""

    loss_sum: float
    correct: int


class Loss(ABC):
    """Compares outputs [n, units] with labels [n], int32 or int64 in [0, units).

    Those of regression take targets, float32 [n, k], in the place of labels.

    Attributes:
        class_weights: the factor of each example's loss and error by its label, [units]; None: 1.
        answer_types: characters of the types of labels, or targets, that it takes.
        has_sums: whether evaluations have to call `sums`.
    """

    compiled_name: ClassVar[str]
    answer_types: frozenset[str] = LABEL_TYPES
    class_weights: Array | None = None
    has_sums: ClassVar[bool] = False

    def __init__(self, backend: str | None = None) -> None:
        self._compiled = compiled_if(choose(backend), "losses")

    def answers_of(self, batch: int, units: int, dtype: type[np.signedinteger[Any]] = np.int32) -> Answers:
        """Returns zeros of the form of a batch's labels, of type `dtype`, or of its targets."""
        return np.zeros(batch, dtype)

    def evaluate(self, outputs: Array, labels: Answers) -> LossResult:
        """Returns the loss of a batch, without derivative."""
        return self._measured(outputs, labels, None)

    def backward(self, outputs: Array, labels: Answers, error: Array) -> LossResult:
        """As `evaluate`, and writes the derivative of the mean loss into `error` [n, units]."""
        return self._measured(outputs, labels, error)

    def bind_backward(self, batch: int, error: Array) -> Callable[[Array, Answers], tuple[float, int]]:
        """Returns `backward` of batches of this size as a function of outputs and labels: (summed loss, correct)."""
        if self._compiled is None:
            return lambda outputs, labels: self.backward(outputs, labels, error)
        shape, types, run = self.answers_of(batch, error.shape[1]).shape, self.answer_types, self._run_compiled

        def backward(outputs: Array, labels: Answers) -> tuple[float, int]:
            if labels.shape == shape and labels.dtype.char in types:
                loss_sum, correct = run(outputs, labels, error)
                if correct >= 0:
                    return loss_sum, correct
            return self.backward(outputs, labels, error)  # raises with the reason

        return backward

    def native_backward(self, outputs: Array, labels: Answers, error: Array, result: Result) -> list[Call] | None:
        """Returns `backward` of these arrays as a native call; `result` [2] takes the float64 loss and correct count.

        A label out of range makes the second -1.
        """
        if self._compiled is None:
            return None
        return [NativeCall(getattr(self._compiled, self.compiled_name), (outputs, labels, error), result)]

    @property
    def unweighted(self) -> Loss:
        """The loss in which each class weighs 1: that of evaluations."""
        return self

    def sums(self, outputs: Array, labels: Answers) -> tuple[float, ...]:
        """Returns what an evaluation adds up for the metric besides the loss and correct examples."""
        return ()

    def finish(self, outputs: Array) -> Array:
        """Turns the outputs that `evaluate` and `backward` take into those that a user sees, in place; returns them."""
        return outputs

    def _measured(self, outputs: Array, labels: Answers, error: Array | None) -> LossResult:
        if outputs.ndim != 2 or labels.shape != outputs.shape[:1]:
            raise ValueError(f"labels: expected shape [{len(outputs)}]; found {list(labels.shape)}")
        if labels.dtype not in (np.int32, np.int64):
            raise ValueError(f"labels: expected int32 or int64; found {labels.dtype}")
        if self._compiled is not None and outputs.dtype == np.float32:
            loss_sum, correct = self._run_compiled(outputs, labels, error)
            if correct < 0:
                _refuse(labels, outputs.shape[1])
            return LossResult(loss_sum, correct)
        if len(labels) and (labels.min() < 0 or labels.max() >= outputs.shape[1]):
            _refuse(labels, outputs.shape[1])
        correct = int(np.count_nonzero(np.argmax(outputs, axis=1) == labels)) if len(labels) else 0
        return LossResult(float(self._losses(outputs, labels, error).sum()), correct)

    @abstractmethod
    def _run_compiled(self, outputs: Array, labels: Answers, error: Array | None) -> tuple[float, int]: ...

    @abstractmethod
    def _losses(self, outputs: Array, labels: Answers, error: Array | None) -> NDArray[np.float64]:
        """Returns the loss of each example, [n], and writes the derivative of their mean into `error`, if given."""


class CrossEntropy(Loss):
    """-ln p[label], p at least the smallest normal float32; the derivative is that at the logits of the softmax."""

    compiled_name = "cross_entropy_error"

    def _run_compiled(self, outputs: Array, labels: Answers, error: Array | None) -> tuple[float, int]:
        if error is None:
            return self._compiled.cross_entropy(outputs, labels)  # type: ignore[no-any-return]
        return self._compiled.cross_entropy_error(outputs, labels, error)  # type: ignore[no-any-return]

    def _losses(self, outputs: Array, labels: Answers, error: Array | None) -> NDArray[np.float64]:
        rows = np.arange(len(labels))
        if error is not None:
            error[...] = outputs
            error[rows, labels] -= 1
            error /= max(len(labels), 1)
        picked = np.maximum(outputs[rows, labels], PROBABILITY_MIN)
        return -np.log(picked, dtype=np.float64)


class SquaredError(Loss):
    """0.5 * sum_i (t_i - a_i)^2; the derivative is that at the outputs."""

    compiled_name = "squared_error_error"

    def _run_compiled(self, outputs: Array, labels: Answers, error: Array | None) -> tuple[float, int]:
        if error is None:
            return self._compiled.squared_error(outputs, labels)  # type: ignore[no-any-return]
        return self._compiled.squared_error_error(outputs, labels, error)  # type: ignore[no-any-return]

    def _losses(self, outputs: Array, labels: Answers, error: Array | None) -> NDArray[np.float64]:
        difference = outputs.astype(np.float64)
        difference[np.arange(len(labels)), labels] -= 1
        if error is not None:
            error[...] = difference / max(len(labels), 1)
        return np.asarray(0.5 * np.square(difference).sum(axis=1))


class Logistic(Loss):
    """sum_i ln(1 + exp(z_i)) - z[label] of logits; the derivative is that at the logits. No one-hot targets are stored.

    Exact for logits of any size: ln(1 + exp(z)) = max(z, 0) + ln(1 + exp(-|z|)).
    """

    compiled_name = "logistic_error"

    def __init__(self, backend: str | None = None) -> None:
        self._compiled = compiled_if(choose(backend), "logistic")

    def finish(self, outputs: Array) -> Array:
        """Turns logits into probabilities."""
        activate("sigmoid", outputs)
        return outputs

    def _run_compiled(self, outputs: Array, labels: Answers, error: Array | None) -> tuple[float, int]:
        if error is None:
            return self._compiled.logistic(outputs, labels)  # type: ignore[no-any-return]
        return self._compiled.logistic_error(outputs, labels, error)  # type: ignore[no-any-return]

    def _losses(self, outputs: Array, labels: Answers, error: Array | None) -> NDArray[np.float64]:
        rows = np.arange(len(labels))
        logits = outputs.astype(np.float64)
        losses = np.maximum(logits, 0) + np.log1p(np.exp(-np.abs(logits)))
        if error is not None:
            error[...] = outputs
            activate("sigmoid", error)
            error[rows, labels] -= 1
            error /= max(len(labels), 1)
        return np.asarray(losses.sum(axis=1) - logits[rows, labels])


def _refuse(labels: Answers, units: int) -> None:
    raise ValueError(f"labels: expected values in [0, {units}); found {labels.min()} to {labels.max()}")

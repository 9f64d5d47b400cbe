"""A user's loss as the loss of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import CustomError
from adamctl.kernels.array import Array
from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.custom_kernel import checked_calls, make_from_python
from adamctl.kernels.layers.losses import LABEL_TYPES, Answers, Loss, LossResult
from adamctl.kernels.native import Call, NativeCall, Result
from adamctl.model.custom import loss as custom
from adamctl.model.custom.asking import ask


class CustomLoss(Loss):
    """Checks what the user's loss is given and what it returns.

    In a step the loss's own kernels compute it, if it has any; else Python, between native functions.
    """

    has_sums = True

    def __init__(self, own: custom.Loss, backend: str | None = None) -> None:
        self._own, self._compiled = own, None
        self._kernels = compiled_if(choose(backend), "losses")
        self._target_numbers = lru_cache(partial(custom.target_numbers_of, own))  # each step asks
        self._takes_targets = own.answers == "targets"
        self.answer_types = frozenset("f") if self._takes_targets else LABEL_TYPES
        self.name = type(own).__name__
        self._sum_count = -1  # known after the first

    def answers_of(self, batch: int, units: int, dtype: type[np.signedinteger[Any]] = np.int32) -> Answers:
        if self._takes_targets:
            return np.zeros((batch, self._target_numbers(units)), np.float32)
        return np.zeros(batch, dtype)

    def native_backward(self, outputs: Array, labels: Answers, error: Array, result: Result) -> list[Call] | None:
        losses = np.zeros(len(outputs), np.float32)
        if self._takes_targets:
            calls = self._calls(outputs, labels, error, losses)
            if calls is None:
                return None
            return [*calls, NativeCall(self._kernels.sum_with_targets, (losses, labels), result)]
        units, safe = outputs.shape[1], np.zeros(len(outputs), np.int32)
        calls = self._calls(outputs, safe, error, losses)
        if calls is None:
            return None
        copied = NativeCall(self._kernels.safe_labels, (labels, units, safe))
        return [copied, *calls, NativeCall(self._kernels.sum_with_labels, (losses, labels, units), result)]

    def finish(self, outputs: Array) -> Array:
        return custom.finished_by(self._own, outputs)

    def sums(self, outputs: Array, labels: Answers) -> tuple[float, ...]:
        if not len(outputs):
            return ()
        found = custom.measured_by(self._own, outputs, self._as_promised(labels))
        if self._sum_count not in (-1, len(found)):
            counts = f"as many as before, {self._sum_count}; found {len(found)}"
            raise CustomError(f"{self.name}.measure: expected {counts}")
        self._sum_count = len(found)
        return found

    def _calls(self, outputs: Array, answers: Answers, error: Array, losses: Array) -> list[Call] | None:
        """Returns the user's calls that write the error and the loss of each example."""
        if self._kernels is None:
            return None
        calls = self._asked(self._own.native_error, outputs, answers, error, losses)
        return checked_calls(f"{self.name}.native_error", calls)

    def _asked(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return ask(f"{self.name}.{method.__name__}", method, *arguments)

    def _measured(self, outputs: Array, answers: Answers, error: Array | None) -> LossResult:
        self._check(outputs, answers)
        if not len(outputs):
            return LossResult(0.0, 0)
        return LossResult(float(self._losses(outputs, answers, error).sum()), 0)

    def _check(self, outputs: Array, answers: Answers) -> None:
        kind = "targets" if self._takes_targets else "labels"
        expected = self.answers_of(len(outputs), outputs.shape[1])
        if answers.shape != expected.shape or answers.dtype.char not in self.answer_types:
            raise ValueError(
                f"{kind}: expected {expected.dtype} {list(expected.shape)}; found {answers.dtype} {list(answers.shape)}"
            )
        if self._takes_targets and not np.isfinite(answers).all():
            raise ValueError("targets: expected finite numbers; found some that are not")
        if not self._takes_targets and len(answers) and (answers.min() < 0 or answers.max() >= outputs.shape[1]):
            raise ValueError(
                f"labels: expected values in [0, {outputs.shape[1]}); found {answers.min()} to {answers.max()}"
            )

    def _as_promised(self, answers: Answers) -> Answers:
        """Returns labels as int32, whatever a step has them in."""
        return answers if self._takes_targets else answers.astype(np.int32, copy=False)

    def _run_compiled(self, outputs: Array, answers: Answers, error: Array | None) -> tuple[float, int]:
        raise AssertionError("Python computes it")

    def _losses(self, outputs: Array, answers: Answers, error: Array | None) -> NDArray[np.float64]:
        answers = self._as_promised(answers)
        if error is not None and outputs.dtype == np.float32:
            found = np.zeros(len(outputs), np.float32)
            if make_from_python(self._calls(outputs, answers, error, found)):
                return found.astype(np.float64)
        losses = np.asarray(self._asked(self._own.evaluate, outputs, answers))
        if losses.shape != outputs.shape[:1] or losses.dtype.kind not in "fiu":
            raise CustomError(
                f"{self.name}.evaluate: expected the loss of each example, [{len(outputs)}]; found {losses.dtype} "
                f"{list(losses.shape)}"
            )
        if error is not None:
            custom.write_error(self._own, outputs, answers, error)
        return losses.astype(np.float64)

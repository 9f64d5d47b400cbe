"""The loss of regression: the mean of the squares of what outputs are away from targets (PyTorch's `MSELoss`).

With outputs a and targets t, both [n, k], an example's loss is mean_i (a_i - t_i)^2, and a batch's is the mean of
those: the mean over all n k numbers. Its derivative at the outputs is 2 (a - t) / (n k).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array
from adamctl.kernels.layers.losses import Answers, Loss, LossResult


class MeanSquaredError(Loss):
    """Compares outputs [n, k] with targets [n, k], float32. No example is correct or wrong: that count is 0."""

    compiled_name = "mean_squared_error_error"
    answer_types = frozenset("f")

    def answers_of(self, batch: int, units: int, dtype: type[np.signedinteger[Any]] = np.int32) -> Answers:
        return np.zeros((batch, units), np.float32)

    def _measured(self, outputs: Array, answers: Answers, error: Array | None) -> LossResult:
        if outputs.ndim != 2 or answers.shape != outputs.shape:
            raise ValueError(f"targets: expected shape {list(outputs.shape)}; found {list(answers.shape)}")
        if answers.dtype != np.float32:
            raise ValueError(f"targets: expected float32; found {answers.dtype}")
        if self._compiled is not None and outputs.dtype == np.float32:
            loss_sum, correct = self._run_compiled(outputs, answers, error)
            if correct < 0:
                _refuse(answers)
            return LossResult(loss_sum, correct)
        if not np.isfinite(answers).all():
            _refuse(answers)
        return LossResult(float(self._losses(outputs, answers, error).sum()), 0)

    def _run_compiled(self, outputs: Array, answers: Answers, error: Array | None) -> tuple[float, int]:
        if error is None:
            return self._compiled.mean_squared_error(outputs, answers)  # type: ignore[no-any-return]
        return self._compiled.mean_squared_error_error(outputs, answers, error)  # type: ignore[no-any-return]

    def _losses(self, outputs: Array, answers: Answers, error: Array | None) -> NDArray[np.float64]:
        difference = outputs.astype(np.float64) - answers
        if error is not None:
            error[...] = difference * (2 / max(difference.size, 1))
        return np.asarray(np.square(difference).mean(axis=1))


def _refuse(targets: Answers) -> None:
    row, place = np.argwhere(~np.isfinite(targets))[0]
    raise ValueError(f"targets: expected finite numbers; found {targets[row, place]} in example {row} of a batch")

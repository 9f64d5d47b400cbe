"""Adagrad as in DistBelief 4.1: each parameter has its own rate eta_i = gamma / sqrt(sum_j g_ij^2).

The sum includes the present gradient: a_i += g_i^2, then w_i -= lr * g_i / sqrt(a_i). Where the gradient is zero
nothing changes, even if the sum is still zero. Weight decay is decoupled: w -= lr * weight_decay * w.
"""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, evaluate

# Keeps 0 / sqrt(0) at 0 and is far below the square of any gradient that does not itself round to zero.
FLOOR = float(np.finfo(np.float32).tiny)


class Adagrad(Rule):
    """State `squares`: the sum of squared gradients."""

    name = "adagrad"
    state_names = ("squares",)

    def constants(self) -> tuple[float, ...]:
        return (FLOOR,)

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (squares,), (rate, keep) = state, numbers
        change = gradient * gradient
        squares += change
        np.maximum(squares, np.float32(FLOOR), out=change)
        np.sqrt(change, out=change)
        np.divide(gradient, change, out=change)
        change *= np.float32(rate)
        np.multiply(weights_in, np.float32(keep), out=weights_out)
        weights_out -= change

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (squares,), (rate, keep) = state, numbers
        scalars = {"rate": rate, "keep": keep, "least": FLOOR}
        arrays = {"w": weights_in, "a": squares, "g": gradient}
        evaluate("a + g * g", squares, arrays, scalars)
        evaluate("w * keep - rate * g / sqrt(where(a < least, least, a))", weights_out, arrays, scalars)

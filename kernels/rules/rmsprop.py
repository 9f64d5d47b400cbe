"""RMSProp (Tieleman and Hinton 2012, lecture 6e): the gradient divided by the root of its recent mean square.

a = decay * a + (1 - decay) * g^2, w -= lr * g / (sqrt(a) + epsilon). Where the gradient is zero the weights do not
change. Weight decay is decoupled: w -= lr * weight_decay * w.
"""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, evaluate


class RMSProp(Rule):
    """State `squares`: the exponential mean of squared gradients, started at zero without bias correction."""

    name = "rmsprop"
    state_names = ("squares",)

    def constants(self) -> tuple[float, ...]:
        return self.config.decay, 1 - self.config.decay, self.config.epsilon

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (squares,), (rate, keep) = state, numbers
        change = gradient * np.float32(1 - self.config.decay)
        change *= gradient
        squares *= np.float32(self.config.decay)
        squares += change
        np.sqrt(squares, out=change)
        change += np.float32(self.config.epsilon)
        np.divide(gradient, change, out=change)
        change *= np.float32(rate)
        np.multiply(weights_in, np.float32(keep), out=weights_out)
        weights_out -= change

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (squares,), (rate, keep) = state, numbers
        decay, rest, epsilon = self.constants()
        scalars = {"rate": rate, "keep": keep, "decay": decay, "rest": rest, "epsilon": epsilon}
        arrays = {"w": weights_in, "a": squares, "g": gradient}
        evaluate("decay * a + rest * g * g", squares, arrays, scalars)
        evaluate("w * keep - rate * g / (sqrt(a) + epsilon)", weights_out, arrays, scalars)

"""Gradient descent with momentum m (Sutskever et al. 2013): v = m v + g, w -= lr * v.

With `nesterov` the step looks ahead: w -= lr * (g + m v). Weight decay is decoupled: w -= lr * weight_decay
* w.
"""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, evaluate


class Momentum(Rule):
    """State `velocity`: the discounted sum of past gradients."""

    name = "momentum"
    state_names = ("velocity",)

    def compiled_name(self) -> str:
        return "nesterov" if self.config.nesterov else "momentum"

    def constants(self) -> tuple[float, ...]:
        return (self.config.momentum,)

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (velocity,), (rate, keep) = state, numbers
        velocity *= np.float32(self.config.momentum)
        velocity += gradient
        change = gradient + np.float32(self.config.momentum) * velocity if self.config.nesterov else velocity.copy()
        change *= np.float32(rate)
        np.multiply(weights_in, np.float32(keep), out=weights_out)
        weights_out -= change

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (velocity,), (rate, keep) = state, numbers
        scalars = {"rate": rate, "m": self.config.momentum, "keep": keep}
        arrays = {"w": weights_in, "v": velocity, "g": gradient}
        evaluate("m * v + g", velocity, arrays, scalars)
        step = "w * keep - rate * (g + m * v)" if self.config.nesterov else "w * keep - rate * v"
        evaluate(step, weights_out, arrays, scalars)

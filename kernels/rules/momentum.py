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

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None:
        (velocity,) = state
        velocity *= np.float32(self.config.momentum)
        velocity += gradient
        change = gradient + np.float32(self.config.momentum) * velocity if self.config.nesterov else velocity.copy()
        change *= np.float32(lr)
        np.multiply(weights_in, np.float32(1 - lr * self.config.weight_decay), out=weights_out)
        weights_out -= change

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None:
        (velocity,) = state
        scalars = {"lr": lr, "m": self.config.momentum, "keep": 1 - lr * self.config.weight_decay}
        arrays = {"w": weights_in, "v": velocity, "g": gradient}
        evaluate("m * v + g", velocity, arrays, scalars)
        step = "w * keep - lr * (g + m * v)" if self.config.nesterov else "w * keep - lr * v"
        evaluate(step, weights_out, arrays, scalars)

    def _apply_numba(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None:
        run = self._compiled.nesterov if self.config.nesterov else self._compiled.momentum
        keep = 1 - lr * self.config.weight_decay
        run(weights_in, weights_out, state[0], gradient, lr, self.config.momentum, keep)

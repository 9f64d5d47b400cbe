"""Stochastic gradient descent with decoupled weight decay: w -= lr * (g + weight_decay * w)."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, evaluate


class Sgd(Rule):
    """weights_out = weights_in * (1 - lr * weight_decay) - lr * gradient."""

    name = "sgd"

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None:
        change = gradient * np.float32(lr)
        np.multiply(weights_in, np.float32(1 - lr * self.config.weight_decay), out=weights_out)
        weights_out -= change

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None:
        scalars = {"lr": lr, "keep": 1 - lr * self.config.weight_decay}
        evaluate("w * keep - lr * g", weights_out, {"w": weights_in, "g": gradient}, scalars)

    def _apply_numba(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None:
        self._compiled.sgd(weights_in, weights_out, gradient, lr, 1 - lr * self.config.weight_decay)

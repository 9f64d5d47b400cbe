"""Stochastic gradient descent with decoupled weight decay: w -= lr * (g + weight_decay * w)."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, evaluate


class Sgd(Rule):
    """weights_out = weights_in * (1 - lr * weight_decay) - lr * gradient."""

    name = "sgd"

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        rate, keep = numbers
        change = gradient * np.float32(rate)
        np.multiply(weights_in, np.float32(keep), out=weights_out)
        weights_out -= change

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        rate, keep = numbers
        scalars = {"rate": rate, "keep": keep}
        evaluate("w * keep - rate * g", weights_out, {"w": weights_in, "g": gradient}, scalars)

"""Adam, the optimizer (Kingma and Ba 2015, algorithm 1), with both bias corrections; no relation to Project Adam.

m = beta1 * m + (1 - beta1) * g, a = beta2 * a + (1 - beta2) * g^2, and with t counting the shard's updates from 1
w -= lr * (m / (1 - beta1^t)) / (sqrt(a / (1 - beta2^t)) + epsilon). Weights do not change until a gradient differs
from zero. Weight decay is decoupled (Loshchilov and Hutter 2019): w -= lr * weight_decay * w.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, evaluate


class Adam(Rule):
    """State `mean` and `squares`: exponential means of gradients and their squares; `steps`: updates of the shard.

    The count is a float32 number, exact up to 2^24, where it stops; by then both corrections are 1.
    """

    name = "adam"
    state_names = ("mean", "squares", "steps")
    shard_state = ("steps",)

    def constants(self) -> tuple[float, ...]:
        beta1, beta2 = self.config.beta1, self.config.beta2
        return beta1, 1 - beta1, beta2, 1 - beta2, self.config.epsilon

    def numbers_of(self, lr: float, state: Sequence[Array], number: int) -> tuple[float, ...]:
        """Returns (lr / (1 - beta1^t), keep, 1 / sqrt(1 - beta2^t)); computed in double precision."""
        step = float(state[2][0]) + number
        rate, keep = super().numbers_of(lr, state, number)
        return rate / (1 - self.config.beta1**step), keep, float((1 - self.config.beta2**step) ** -0.5)

    def count(self, state: Sequence[Array], updates: int) -> None:
        state[2][:1] += np.float32(updates)

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (mean, squares, _), (rate, keep, root_rate) = state, numbers
        change = gradient * np.float32(1 - self.config.beta2)
        change *= gradient
        squares *= np.float32(self.config.beta2)
        squares += change
        np.multiply(gradient, np.float32(1 - self.config.beta1), out=change)
        mean *= np.float32(self.config.beta1)
        mean += change
        np.sqrt(squares, out=change)
        change *= np.float32(root_rate)
        change += np.float32(self.config.epsilon)
        np.divide(mean, change, out=change)
        change *= np.float32(rate)
        np.multiply(weights_in, np.float32(keep), out=weights_out)
        weights_out -= change

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        (mean, squares, _), (rate, keep, root_rate) = state, numbers
        beta1, rest1, beta2, rest2, epsilon = self.constants()
        scalars = {"rate": rate, "keep": keep, "root_rate": root_rate, "epsilon": epsilon}
        scalars |= {"beta1": beta1, "rest1": rest1, "beta2": beta2, "rest2": rest2}
        arrays = {"w": weights_in, "m": mean, "a": squares, "g": gradient}
        evaluate("beta1 * m + rest1 * g", mean, arrays, scalars)
        evaluate("beta2 * a + rest2 * g * g", squares, arrays, scalars)
        evaluate("w * keep - rate * m / (root_rate * sqrt(a) + epsilon)", weights_out, arrays, scalars)

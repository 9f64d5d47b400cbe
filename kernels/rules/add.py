"""w += d: adds a worker's delta unchanged; the worker has applied its learning rate (Adam's own protocol, 3.2.6)."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, evaluate


class Add(Rule):
    """weights_out = weights_in + delta; the learning rate and weight decay are not used."""

    name = "add"

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        np.add(weights_in, gradient, out=weights_out)

    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        evaluate("w + d", weights_out, {"w": weights_in, "d": gradient}, {})

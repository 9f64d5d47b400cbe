"""Losses to minimise, with gradients in float64; those of networks are in `adamctl.bench.sandblaster.problems`."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.array import Array
from adamctl.optimizers.local import Objective


def quadratic(condition: float, size: int = 50) -> tuple[Objective, Array]:
    """A bowl in a rotated system of axes, with a minimum of 0, and where to begin."""
    chance = np.random.default_rng(0)
    axes, _ = np.linalg.qr(chance.normal(size=(size, size)))
    matrix = axes @ np.diag(np.geomspace(1 / condition, 1, size)) @ axes.T
    bottom = chance.normal(size=size)

    def objective(x: Array) -> tuple[float, Array]:
        gradient = matrix @ (x.astype(float) - bottom)
        return 0.5 * float((x - bottom) @ gradient), gradient

    return objective, np.zeros(size)


def rosenbrock(size: int) -> tuple[Objective, Array]:
    """Rosenbrock's valley, chained, with a minimum of 0 at 1."""

    def objective(x: Array) -> tuple[float, Array]:
        x = x.astype(float)
        off, gradient = x[1:] - x[:-1] ** 2, np.zeros(size)
        gradient[:-1] = -400 * x[:-1] * off - 2 * (1 - x[:-1])
        gradient[1:] += 200 * off
        return float(np.sum(100 * off**2 + (1 - x[:-1]) ** 2)), gradient

    return objective, np.tile([-1.2, 1.0], size // 2)

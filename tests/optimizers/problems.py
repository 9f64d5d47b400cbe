"""Losses to minimise, with gradients in float64: what batch algorithms are compared with others' on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

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


def digits() -> tuple[Array, Array]:
    """The first 1,437 images of scikit-learn's digits, 0 to 1, and which of ten each is, as 0 and 1."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    return data.data[:1437] / 16, np.eye(10)[data.target[:1437]]


def cross_entropy(scores: Array, targets: Array) -> tuple[float, Array]:
    """The mean over examples, and its gradient."""
    scores = scores - scores.max(axis=1, keepdims=True)
    powers = np.exp(scores)
    sums = powers.sum(axis=1, keepdims=True)
    return float(np.mean(np.log(sums[:, 0]) - (scores * targets).sum(axis=1))), (powers / sums - targets) / len(scores)


def softmax_regression(weight_decay: float) -> tuple[Objective, Array]:
    images, targets = digits()
    images = np.hstack([images, np.ones((len(images), 1))])

    def objective(x: Array) -> tuple[float, Array]:
        weights = x.astype(float).reshape(65, 10)
        loss, errors = cross_entropy(images @ weights, targets)
        return loss + weight_decay / 2 * float(np.sum(weights**2)), (images.T @ errors + weight_decay * weights).ravel()

    return objective, np.zeros(650)


def perceptron(seed: int, hidden: int = 32, weight_decay: float = 1e-4) -> tuple[Objective, Array]:
    """One layer of hyperbolic tangents between the digits and the scores."""
    images, targets = digits()
    chance = np.random.default_rng(seed)
    shapes = [(64, hidden), (hidden,), (hidden, 10), (10,)]
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

    def objective(x: Array) -> tuple[float, Array]:
        x = x.astype(float)
        w1, b1, w2, b2 = (part.reshape(shape) for part, shape in zip(np.split(x, cuts), shapes, strict=True))
        units = np.tanh(images @ w1 + b1)
        loss, errors = cross_entropy(units @ w2 + b2, targets)
        below = (errors @ w2.T) * (1 - units**2)
        parts = [(images.T @ below).ravel(), below.sum(axis=0), (units.T @ errors).ravel(), errors.sum(axis=0)]
        return loss + weight_decay / 2 * float(x @ x), np.concatenate(parts) + weight_decay * x

    w1, w2 = chance.normal(size=shapes[0]) / 8, chance.normal(size=shapes[2]) / hidden**0.5
    start = np.concatenate([w1.ravel(), np.zeros(hidden), w2.ravel(), np.zeros(10)])
    return objective, start.astype(np.float32)


def watched(objective: Objective, losses: list[float]) -> Callable[[Array], tuple[float, Array]]:
    """The objective; whatever is evaluated, its loss goes to the list."""

    def watching(x: Array) -> tuple[float, Array]:
        loss, gradient = objective(x)
        losses.append(loss)
        return loss, gradient

    return watching

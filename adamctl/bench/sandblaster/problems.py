"""Losses of small networks on handwritten digits, in float64: what L-BFGS is compared with others' on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.array import Array
from adamctl.optimizers.local import Objective
from adamctl.roles.data.readers.digits import open_digits

PIXELS, CLASSES = 64, 10
Numbers: TypeAlias = NDArray[Any]
Problem = Callable[[], tuple[Objective, Array]]
"""Makes an objective, and where to begin."""


@cache
def digits() -> tuple[Numbers, Numbers]:
    """The 1,437 training images of scikit-learn's digits, 0 to 1, and which of ten each is, as 0 and 1.

    Raises:
        ConfigurationError: scikit-learn is not installed.
    """
    source = open_digits((PIXELS,))
    labels = source.labels("train")
    images = np.empty((len(labels), PIXELS), np.uint8)
    source.load("train", np.arange(len(labels)), images)
    return images / source.value_max, np.eye(CLASSES)[labels]


def cross_entropy(scores: Numbers, targets: Numbers) -> tuple[float, Numbers]:
    """The mean over examples, and its gradient."""
    scores = scores - scores.max(axis=1, keepdims=True)
    powers = np.exp(scores)
    sums = powers.sum(axis=1, keepdims=True)
    return float(np.mean(np.log(sums[:, 0]) - (scores * targets).sum(axis=1))), (powers / sums - targets) / len(scores)


def softmax_regression(weight_decay: float) -> tuple[Objective, Array]:
    """A convex loss of 650 parameters."""
    images, targets = digits()
    images = np.hstack([images, np.ones((len(images), 1))])
    shape = (PIXELS + 1, CLASSES)

    def objective(x: Array) -> tuple[float, Array]:
        weights: Numbers = x.astype(float).reshape(shape)
        loss, errors = cross_entropy(images @ weights, targets)
        gradient: Numbers = (images.T @ errors + weight_decay * weights).ravel()
        return loss + weight_decay / 2 * float(np.sum(weights**2)), gradient

    return objective, np.zeros(shape[0] * shape[1], np.float32)


def perceptron(seed: int, hidden: int = 32, weight_decay: float = 1e-4) -> tuple[Objective, Array]:
    """One layer of hyperbolic tangents between the digits and the scores."""
    images, targets = digits()
    chance = np.random.default_rng(seed)
    shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

    def objective(x: Array) -> tuple[float, Array]:
        at: Numbers = x.astype(float)
        w1, b1, w2, b2 = (part.reshape(shape) for part, shape in zip(np.split(at, cuts), shapes, strict=True))
        units = np.tanh(images @ w1 + b1)
        loss, errors = cross_entropy(units @ w2 + b2, targets)
        below = (errors @ w2.T) * (1 - units**2)
        parts = [(images.T @ below).ravel(), below.sum(axis=0), (units.T @ errors).ravel(), errors.sum(axis=0)]
        gradient: Numbers = np.concatenate(parts) + weight_decay * at
        return loss + weight_decay / 2 * float(at @ at), gradient

    w1, w2 = chance.normal(size=shapes[0]) / PIXELS**0.5, chance.normal(size=shapes[2]) / hidden**0.5
    start = np.concatenate([w1.ravel(), np.zeros(hidden), w2.ravel(), np.zeros(CLASSES)])
    return objective, start.astype(np.float32)


def watched(objective: Objective, losses: list[float]) -> Objective:
    """The objective; whatever is evaluated, its loss goes to the list."""

    def watching(x: Array) -> tuple[float, Array]:
        loss, gradient = objective(x)
        losses.append(loss)
        return loss, gradient

    return watching


REGRESSIONS: Mapping[str, Problem] = {
    f"softmax regression, weight decay {decay:g}": partial(softmax_regression, decay) for decay in (1e-2, 1e-3, 1e-4)
}
PERCEPTRONS: Mapping[str, Problem] = {f"perceptron, seed {seed}": partial(perceptron, seed) for seed in range(5)}
PROBLEMS: Mapping[str, Problem] = {**REGRESSIONS, **PERCEPTRONS}

"""The losses by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.layers.losses import CrossEntropy, Logistic, Loss, SquaredError
from adamctl.kernels.layers.mean_squared_error import MeanSquaredError
from adamctl.kernels.layers.weighted_loss import WeightedLoss
from adamctl.model.description import Loss as LossName

LOSSES: dict[LossName, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "squared_error": SquaredError,
    "logistic": Logistic,
    "mean_squared_error": MeanSquaredError,
}


def make_loss(name: LossName, backend: str | None = None) -> Loss:
    """Returns the loss of a model description."""
    return LOSSES[name](backend)


def make_training_loss(name: LossName, class_weights: Sequence[float] | None, backend: str | None = None) -> Loss:
    """Returns the loss of a model description; with class weights [units], a weighted one."""
    plain = make_loss(name, backend)
    return plain if class_weights is None else WeightedLoss(plain, np.array(class_weights, np.float32), backend)

"""The losses by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.layers.losses import CrossEntropy, Logistic, Loss, SquaredError
from adamctl.kernels.layers.mean_squared_error import MeanSquaredError
from adamctl.kernels.layers.own_loss import OwnLoss
from adamctl.kernels.layers.weighted_loss import WeightedLoss
from adamctl.model.description import LossName
from adamctl.model.own_loss import is_own, own_loss

LOSSES: dict[LossName, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "squared_error": SquaredError,
    "logistic": Logistic,
    "mean_squared_error": MeanSquaredError,
}


def make_loss(name: str, backend: str | None = None) -> Loss:
    """Returns the loss of a model description; may raise ConfigurationError if it is one's own."""
    return OwnLoss(own_loss(name)) if is_own(name) else LOSSES[name](backend)  # type: ignore[index]


def make_training_loss(name: str, class_weights: Sequence[float] | None, backend: str | None = None) -> Loss:
    """Returns the loss of a model description; with class weights [units], a weighted one."""
    plain = make_loss(name, backend)
    return plain if class_weights is None else WeightedLoss(plain, np.array(class_weights, np.float32), backend)

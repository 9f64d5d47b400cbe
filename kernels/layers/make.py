"""The losses by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.layers.custom_loss import CustomLoss
from adamctl.kernels.layers.losses import CrossEntropy, Logistic, Loss, SquaredError
from adamctl.kernels.layers.mean_squared_error import MeanSquaredError
from adamctl.kernels.layers.weighted_loss import WeightedLoss
from adamctl.model.custom.loss import custom_loss, is_custom_loss
from adamctl.model.description import LossName

LOSSES: dict[LossName, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "squared_error": SquaredError,
    "logistic": Logistic,
    "mean_squared_error": MeanSquaredError,
}


def make_loss(name: str, backend: str | None = None) -> Loss:
    """Returns the loss of a model description; may raise ConfigurationError if it is one's own."""
    return CustomLoss(custom_loss(name), backend) if is_custom_loss(name) else LOSSES[name](backend)  # type: ignore[index]


def make_training_loss(name: str, class_weights: Sequence[float] | None, backend: str | None = None) -> Loss:
    """Returns the loss of a model description; with class weights [units], a weighted one."""
    plain = make_loss(name, backend)
    return plain if class_weights is None else WeightedLoss(plain, np.array(class_weights, np.float32), backend)

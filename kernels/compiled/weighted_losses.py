"""Losses whose examples weigh as their classes do: `losses`, `logistic` and `heads` with class weights [units].

Each is the code of the loss without weights, which is compiled with None for them.
"""

from __future__ import annotations

from typing import Any

from adamctl.kernels.compiled.heads import make_split_cross_entropy_error
from adamctl.kernels.compiled.jit import IN1, IN2, OUT2, f64, i32, i64, kernel, readable, writable
from adamctl.kernels.compiled.logistic import make_logistic_error, make_split_logistic_error
from adamctl.kernels.compiled.losses import LABELS, make_cross_entropy_error, make_squared_error_error


@kernel(*[(IN2, labels, IN1, OUT2) for labels in LABELS])
def cross_entropy_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of -w[label] ln p[label], correct); error = w[label] (p - onehot) / n."""
    return make_cross_entropy_error(outputs, labels, class_weights, error)


@kernel(*[(IN2, labels, IN1, OUT2) for labels in LABELS])
def squared_error_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of 0.5 w[label] (t - a)^2, correct); error = w[label] (a - t) / n."""
    return make_squared_error_error(outputs, labels, class_weights, error)


@kernel(*[(IN2, labels, IN1, OUT2) for labels in LABELS])
def logistic_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of w[label] times an example's loss, correct); error = w[label] (p - onehot) / n."""
    return make_logistic_error(outputs, labels, class_weights, error)


@kernel((IN2, readable(i32, 1), IN1, i64, i64, writable(f64, 2), OUT2))
def split_logistic_error(
    logits: Any, labels: Any, class_weights: Any, first: int, every: int, statistics: Any, error: Any
) -> tuple[float, int]:
    """As `logistic.split_logistic_error`, with error and loss of each row times its class's weight."""
    return make_split_logistic_error(logits, labels, class_weights, first, every, statistics, error)


@kernel((IN2, readable(i32, 1), IN1, i64, i64, readable(f64, 2), OUT2, f64))
def split_cross_entropy_error(
    logits: Any, labels: Any, class_weights: Any, first: int, every: int, joined: Any, error: Any, least: float
) -> tuple[float, int]:
    """As `heads.split_cross_entropy_error`, with error and loss of each row times its class's weight."""
    return make_split_cross_entropy_error(logits, labels, class_weights, first, every, joined, error, least)

"""Softmax and losses, each in one call. A label out of range makes `correct` -1 and stops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import (
    IN1,
    IN2,
    OUT2,
    f32,
    i32,
    i64,
    inline,
    inline_source,
    kernel,
    readable,
    writable,
)

LABELS = (readable(i32, 1), readable(i64, 1))
TINY = np.float32(np.finfo(np.float32).tiny)


@kernel((OUT2, IN1))
def bias_softmax(outputs: Any, bias: Any) -> None:
    """Adds the bias to each row of outputs [n, units] and normalises it."""
    rows, units = outputs.shape
    for row in range(rows):
        largest = outputs[row, 0] + bias[0]
        for unit in range(units):
            value = outputs[row, unit] + bias[unit]
            outputs[row, unit] = value
            largest = value if value > largest or value != value else largest
        total = np.float32(0)
        for unit in range(units):
            value = np.float32(math.exp(outputs[row, unit] - largest))
            outputs[row, unit] = value
            total += value
        share = np.float32(1) / total
        for unit in range(units):
            outputs[row, unit] *= share


@kernel((IN2, OUT2))
def softmax_error(outputs: Any, error: Any) -> None:
    """error at the probabilities [n, units] -> at the logits: p_i (e_i - sum over j of e_j p_j)."""
    rows, units = outputs.shape
    for row in range(rows):
        probabilities, errors, total = outputs[row], error[row], np.float32(0)
        for unit in range(units):
            total += errors[unit] * probabilities[unit]
        for unit in range(units):
            errors[unit] = (errors[unit] - total) * probabilities[unit]


@inline
def largest_of(outputs: Any, row: int) -> int:
    best = 0
    for unit in range(1, outputs.shape[1]):
        if outputs[row, unit] > outputs[row, best]:
            best = unit
    return best


@inline
def all_in_range(labels: Any, units: int) -> bool:
    good = True
    for row in range(len(labels)):
        good = good and labels[row] >= 0 and labels[row] < units
    return good


@inline
def label_loss(probability: Any) -> float:
    return -math.log(np.float64(TINY if probability < TINY else probability))


@kernel(*[(IN2, labels) for labels in LABELS])
def cross_entropy(outputs: Any, labels: Any) -> tuple[float, int]:
    """Returns (sum of -ln p[label], correct)."""
    loss, correct = 0.0, 0
    if not all_in_range(labels, outputs.shape[1]):
        return loss, -1
    for row in range(outputs.shape[0]):
        loss += label_loss(outputs[row, labels[row]])
        correct += 1 if largest_of(outputs, row) == labels[row] else 0
    return loss, correct


@inline
def weight_of(class_weights: Any, label: int) -> Any:
    """Returns how much an example counts; `class_weights`: [units], or None, which compiles to the constant 1."""
    return 1.0 if class_weights is None else class_weights[label]


@inline_source
def make_cross_entropy_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of -w[label] ln p[label], correct); error = w[label] (p - onehot) / n."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        label = labels[row]
        weight = weight_of(class_weights, label)
        share = np.float32(weight / max(rows, 1))
        loss += weight * label_loss(outputs[row, label])
        correct += 1 if largest_of(outputs, row) == label else 0
        for unit in range(units):
            error[row, unit] = outputs[row, unit] * share
        error[row, label] = (outputs[row, label] - np.float32(1)) * share
    return loss, correct


@kernel(*[(IN2, labels, OUT2) for labels in LABELS])
def cross_entropy_error(outputs: Any, labels: Any, error: Any) -> tuple[float, int]:
    """As `cross_entropy`; error = (p - onehot) / n."""
    return make_cross_entropy_error(outputs, labels, None, error)


@kernel((OUT2, f32))
def scale_error(error: Any, share: Any) -> None:
    """error [n, units] *= share."""
    for row in range(error.shape[0]):
        for unit in range(error.shape[1]):
            error[row, unit] *= share


@kernel(*[(IN2, labels) for labels in LABELS])
def squared_error(outputs: Any, labels: Any) -> tuple[float, int]:
    """Returns (sum of 0.5 (t - a)^2, correct)."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        for unit in range(units):
            difference = np.float64(outputs[row, unit]) - (1.0 if unit == labels[row] else 0.0)
            loss += 0.5 * difference * difference
        correct += 1 if largest_of(outputs, row) == labels[row] else 0
    return loss, correct


@inline_source
def make_squared_error_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of 0.5 w[label] (t - a)^2, correct); error = w[label] (a - t) / n."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        weight = np.float64(weight_of(class_weights, labels[row]))
        share = weight / max(rows, 1)
        for unit in range(units):
            difference = np.float64(outputs[row, unit]) - (1.0 if unit == labels[row] else 0.0)
            loss += 0.5 * weight * difference * difference
            error[row, unit] = np.float32(difference * share)
        correct += 1 if largest_of(outputs, row) == labels[row] else 0
    return loss, correct


@kernel(*[(IN2, labels, OUT2) for labels in LABELS])
def squared_error_error(outputs: Any, labels: Any, error: Any) -> tuple[float, int]:
    """As `squared_error`; error = (a - t) / n."""
    return make_squared_error_error(outputs, labels, None, error)


@inline
def all_finite(targets: Any) -> bool:
    good = True
    for row in range(targets.shape[0]):
        for place in range(targets.shape[1]):
            good = good and math.isfinite(targets[row, place])
    return good


@kernel((IN2, IN2))
def mean_squared_error(outputs: Any, targets: Any) -> tuple[float, int]:
    """Returns (sum over examples of the mean of (a - t)^2, 0); -1 in place of 0 if a target is not finite."""
    loss = 0.0
    rows, units = outputs.shape
    if not all_finite(targets):
        return loss, -1
    for row in range(rows):
        for unit in range(units):
            difference = np.float64(outputs[row, unit]) - np.float64(targets[row, unit])
            loss += difference * difference
    return loss / max(units, 1), 0


@kernel((IN2, IN2, OUT2))
def mean_squared_error_error(outputs: Any, targets: Any, error: Any) -> tuple[float, int]:
    """As `mean_squared_error`; error = 2 (a - t) / (n k)."""
    loss = 0.0
    rows, units = outputs.shape
    if not all_finite(targets):
        return loss, -1
    share = 2.0 / max(rows * units, 1)
    for row in range(rows):
        for unit in range(units):
            difference = np.float64(outputs[row, unit]) - np.float64(targets[row, unit])
            loss += difference * difference
            error[row, unit] = np.float32(difference * share)
    return loss / max(units, 1), 0


@kernel(*[(labels, i64, writable(i32, 1)) for labels in LABELS])
def safe_labels(labels: Any, units: int, safe: Any) -> None:
    """Copies labels, 0 in the place of those out of range: a kernel of the user's own may index with them."""
    for row in range(len(labels)):
        safe[row] = labels[row] if labels[row] >= 0 and labels[row] < units else 0


@kernel(*[(IN1, labels, i64) for labels in LABELS])
def sum_with_labels(losses: Any, labels: Any, units: int) -> tuple[float, int]:
    """Returns (sum of losses [n], 0); -1 in place of 0 if a label is out of range."""
    loss = 0.0
    for row in range(len(losses)):
        loss += losses[row]
    return loss, 0 if all_in_range(labels, units) else -1


@kernel((IN1, IN2))
def sum_with_targets(losses: Any, targets: Any) -> tuple[float, int]:
    """Returns (sum of losses [n], 0); -1 in place of 0 if a target is not finite."""
    loss = 0.0
    for row in range(len(losses)):
        loss += losses[row]
    return loss, 0 if all_finite(targets) else -1

"""Losses whose examples weigh as their classes do: as in `losses`, `logistic` and `heads`, times a factor per row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.heads import LABEL, LARGEST, PLACE, TOTAL
from adamctl.kernels.compiled.jit import IN1, IN2, OUT2, f64, i32, i64, kernel, readable, writable
from adamctl.kernels.compiled.logistic import is_largest, shares_of_no
from adamctl.kernels.compiled.losses import LABELS, all_in_range, label_loss, largest_of


@kernel(*[(IN2, labels, IN1, OUT2) for labels in LABELS])
def cross_entropy_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of -w[label] ln p[label], correct); error = w[label] (p - onehot) / n."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        label = labels[row]
        weight = class_weights[label]
        share = np.float32(weight / max(rows, 1))
        loss += weight * label_loss(outputs[row, label])
        correct += 1 if largest_of(outputs, row) == label else 0
        for unit in range(units):
            error[row, unit] = outputs[row, unit] * share
        error[row, label] = (outputs[row, label] - np.float32(1)) * share
    return loss, correct


@kernel(*[(IN2, labels, IN1, OUT2) for labels in LABELS])
def squared_error_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of 0.5 w[label] (t - a)^2, correct); error = w[label] (a - t) / n."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        weight = np.float64(class_weights[labels[row]])
        for unit in range(units):
            difference = np.float64(outputs[row, unit]) - (1.0 if unit == labels[row] else 0.0)
            loss += 0.5 * weight * difference * difference
            error[row, unit] = np.float32(difference * weight / max(rows, 1))
        correct += 1 if largest_of(outputs, row) == labels[row] else 0
    return loss, correct


@kernel(*[(IN2, labels, IN1, OUT2) for labels in LABELS])
def logistic_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of w[label] times an example's loss, correct); error = w[label] (p - onehot) / n."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        weight = class_weights[labels[row]]
        share = np.float32(weight / max(rows, 1))
        loss += weight * (shares_of_no(outputs[row], error[row], share) - outputs[row, labels[row]])
        correct += 1 if is_largest(outputs[row], labels[row]) else 0
        error[row, labels[row]] -= share
    return loss, correct


@kernel((IN2, readable(i32, 1), IN1, i64, i64, writable(f64, 2), OUT2))
def split_logistic_error(
    logits: Any, labels: Any, class_weights: Any, first: int, every: int, statistics: Any, error: Any
) -> tuple[float, int]:
    """As `logistic.split_logistic_error`, with error and loss of each row times its class's weight."""
    rows, units = logits.shape
    for row in range(rows):
        label, place = labels[row], -1
        if label < 0 or label >= every:
            return 0.0, -1
        weight = class_weights[label]
        share = np.float32(weight / max(rows, 1))
        loss = shares_of_no(logits[row], error[row], share)
        if first <= label < first + units:
            loss -= np.float64(logits[row, label - first])
            error[row, label - first] -= share
        largest = np.float32(-math.inf)
        for unit in range(units):
            if logits[row, unit] > largest:
                largest, place = logits[row, unit], first + unit
        statistics[row, 0], statistics[row, 1] = np.float64(largest), weight * loss
        statistics[row, 2], statistics[row, 3] = np.float64(place), 0.0
    return 0.0, 0


@kernel((IN2, readable(i32, 1), IN1, i64, i64, readable(f64, 2), OUT2, f64))
def split_cross_entropy_error(
    logits: Any, labels: Any, class_weights: Any, first: int, every: int, joined: Any, error: Any, least: float
) -> tuple[float, int]:
    """As `heads.split_cross_entropy_error`, with error and loss of each row times its class's weight."""
    loss, correct = 0.0, 0
    rows, units = logits.shape
    for row in range(rows):
        label = labels[row]
        if label < 0 or label >= every:
            return loss, -1
        weight = class_weights[label]
        share = np.float32(weight / max(rows, 1))
        largest, total = joined[row, LARGEST], joined[row, TOTAL]
        probability = math.exp(joined[row, LABEL] - largest) / total
        loss -= weight * math.log(least if probability < least else probability)
        correct += 1 if joined[row, PLACE] == label else 0
        for unit in range(units):
            error[row, unit] = np.float32(math.exp(np.float64(logits[row, unit]) - largest) / total) * share
        if first <= label < first + units:
            error[row, label - first] -= share
    return loss, correct

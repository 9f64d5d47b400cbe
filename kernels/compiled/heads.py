"""Cross entropy of a softmax whose units lie on several partitions: what each finds, and what it makes of all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN2, OUT2, f64, i32, i64, inline_source, kernel, readable, writable
from adamctl.kernels.compiled.losses import weight_of

LABELS = readable(i32, 1)
LARGEST, TOTAL, PLACE, LABEL = range(4)


@kernel((IN2, LABELS, i64, i64, writable(f64, 2)))
def gather_statistics(logits: Any, labels: Any, first: int, every: int, statistics: Any) -> int:
    """Writes the statistics [n, 4] of units [first, first + units); returns -1 if a label is not below `every`.

    They are the largest logit, the sum of exp(z - largest), where the largest is, and the label's logit (-infinity
    where another partition has it).
    """
    rows, units = logits.shape
    for row in range(rows):
        label = labels[row]
        if label < 0 or label >= every:
            return -1
        best, total = 0, 0.0
        for unit in range(1, units):
            if logits[row, unit] > logits[row, best]:
                best = unit
        for unit in range(units):
            total += math.exp(np.float64(logits[row, unit] - logits[row, best]))
        own = first <= label < first + units
        statistics[row, LARGEST], statistics[row, TOTAL] = logits[row, best], total
        statistics[row, PLACE] = first + best
        statistics[row, LABEL] = np.float64(logits[row, label - first]) if own else -math.inf
    return 0


@kernel((readable(f64, 2), writable(f64, 2), i64))
def join_statistics(statistics: Any, joined: Any, is_first: int) -> None:
    """joined = those of both; partitions come in the order of their units, so the first of equals stays."""
    for row in range(len(joined)):
        if is_first:
            joined[row] = statistics[row]
            continue
        one, other = joined[row, LARGEST], statistics[row, LARGEST]
        largest = other if other > one else one
        joined[row, TOTAL] = joined[row, TOTAL] * math.exp(one - largest) + statistics[row, TOTAL] * math.exp(
            other - largest
        )
        if other > one:
            joined[row, PLACE] = statistics[row, PLACE]
        joined[row, LARGEST] = largest
        joined[row, LABEL] = max(joined[row, LABEL], statistics[row, LABEL])


@inline_source
def make_split_cross_entropy_error(
    logits: Any, labels: Any, class_weights: Any, first: int, every: int, joined: Any, error: Any, least: float
) -> tuple[float, int]:
    """As `split_cross_entropy_error`, with error and loss of each row times its class's weight."""
    loss, correct = 0.0, 0
    rows, units = logits.shape
    for row in range(rows):
        label = labels[row]
        if label < 0 or label >= every:
            return loss, -1
        weight = weight_of(class_weights, label)
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


@kernel((IN2, LABELS, i64, i64, readable(f64, 2), OUT2, f64))
def split_cross_entropy_error(
    logits: Any, labels: Any, first: int, every: int, joined: Any, error: Any, least: float
) -> tuple[float, int]:
    """error = (p - onehot) / n of units [first, first + units); returns (sum of -ln max(p[label], least), correct)."""
    return make_split_cross_entropy_error(logits, labels, None, first, every, joined, error, least)

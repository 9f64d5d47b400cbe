"""The summed cross entropy of yes-or-no outputs, in one pass over their logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import IN2, OUT2, f64, i32, i64, inline, inline_source, kernel, readable, writable
from adamctl.kernels.compiled.losses import all_in_range, weight_of
from adamctl.kernels.compiled.vectors import intrinsic

LABELS = (readable(i32, 1), readable(i64, 1))
BLOCK = 512  # factors of at most 2 whose product is a float64
LOG2_E, LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
# The largest that needs its exponential: exp(-87) is near the smallest normal float32.
DISTANCE_MAX = np.float32(87)
TAYLOR = [np.float32(1 / math.factorial(power)) for power in range(7)]
C2, C3, C4, C5, C6 = TAYLOR[2:]
HALF, ONE, ZERO = np.float32(0.5), np.float32(1), np.float32(0)


@intrinsic
def as_float(typing: Any, bits: Any) -> Any:
    """Returns the float32 with these 32 bits."""

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), expand


@inline
def exponential_of_minus(distance: Any) -> Any:
    """exp(-distance) for 0 <= distance <= 87, to 1e-6 of it: 2^-k exp(r), |r| <= ln(2) / 2, by Taylor's series.

    Unlike the library's, it is a few instructions, which the compiler vectorises.
    """
    halvings = np.int32(distance * LOG2_E + HALF)
    r = np.float32(halvings) * LN_2 - distance
    series = ONE + r * (ONE + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * C6)))))
    return series * as_float(np.int32((np.int32(127) - halvings) << np.int32(23)))


@inline
def is_largest(logits: Any, label: int) -> bool:
    """Whether the label's logit is the largest, the first of equals."""
    own, larger, equals = logits[label], 0, 0
    for unit in range(len(logits)):
        larger += logits[unit] > own
    for unit in range(label):
        equals += logits[unit] == own
    return larger + equals == 0 and own == own


@inline
def distance_of(logit: Any) -> Any:
    """|logit|, at most 87; NaN becomes 87, which keeps the conversion to an integer defined."""
    distance = abs(logit)
    return distance if distance < DISTANCE_MAX else DISTANCE_MAX


@inline
def shares_of_no(logits: Any, errors: Any, share: Any) -> float:
    """errors = p * share, as if no unit were the label's; returns the sum of ln(1 + exp(z_i))."""
    loss, units = 0.0, len(logits)
    for start in range(0, units, BLOCK):
        product, above = 1.0, 0.0
        for unit in range(start, min(start + BLOCK, units)):
            logit = logits[unit]
            exponential = exponential_of_minus(distance_of(logit))
            product *= 1.0 + np.float64(exponential)
            above += np.float64(ZERO if logit < ZERO else logit)
            errors[unit] = exponential
        # A separate loop: together with the sums, the compiler would not vectorise it.
        for unit in range(start, min(start + BLOCK, units)):
            logit, exponential = logits[unit], errors[unit]
            probability = (exponential if logit < ZERO else ONE) / (ONE + exponential)
            errors[unit] = (probability if logit == logit else logit) * share
        loss += math.log(product) + above
    return loss


@kernel(*[(IN2, labels) for labels in LABELS])
def logistic(outputs: Any, labels: Any) -> tuple[float, int]:
    """Returns (sum of ln(1 + exp(z_i)) - z[label], correct)."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        logits = outputs[row]
        for start in range(0, units, BLOCK):
            product, above = 1.0, 0.0
            for unit in range(start, min(start + BLOCK, units)):
                logit = logits[unit]
                product *= 1.0 + np.float64(exponential_of_minus(distance_of(logit)))
                above += np.float64(ZERO if logit < ZERO else logit)
            loss += math.log(product) + above
        loss -= outputs[row, labels[row]]
        correct += 1 if is_largest(outputs[row], labels[row]) else 0
    return loss, correct


@inline_source
def make_logistic_error(outputs: Any, labels: Any, class_weights: Any, error: Any) -> tuple[float, int]:
    """Returns (sum of w[label] times an example's loss, correct); error = w[label] (p - onehot) / n."""
    loss, correct = 0.0, 0
    rows, units = outputs.shape
    if not all_in_range(labels, units):
        return loss, -1
    for row in range(rows):
        weight = weight_of(class_weights, labels[row])
        share = np.float32(weight / max(rows, 1))
        loss += weight * (shares_of_no(outputs[row], error[row], share) - outputs[row, labels[row]])
        correct += 1 if is_largest(outputs[row], labels[row]) else 0
        error[row, labels[row]] -= share
    return loss, correct


@kernel(*[(IN2, labels, OUT2) for labels in LABELS])
def logistic_error(outputs: Any, labels: Any, error: Any) -> tuple[float, int]:
    """As `logistic`; error = (p - onehot) / n."""
    return make_logistic_error(outputs, labels, None, error)


@inline_source
def make_split_logistic_error(
    logits: Any, labels: Any, class_weights: Any, first: int, every: int, statistics: Any, error: Any
) -> tuple[float, int]:
    """As `split_logistic_error`, with error and loss of each row times its class's weight."""
    rows, units = logits.shape
    for row in range(rows):
        label, place = labels[row], -1
        if label < 0 or label >= every:
            return 0.0, -1
        weight = weight_of(class_weights, label)
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


@kernel((IN2, readable(i32, 1), i64, i64, writable(f64, 2), OUT2))
def split_logistic_error(
    logits: Any, labels: Any, first: int, every: int, statistics: Any, error: Any
) -> tuple[float, int]:
    """error = (p - onehot) / n of units [first, first + units) of `every`.

    Writes into `statistics` [n, 4] the largest logit, the loss of these units, and where the largest is. The second of
    what it returns is -1 if a label is out of range.
    """
    return make_split_logistic_error(logits, labels, None, first, every, statistics, error)


@kernel((readable(f64, 2), writable(f64, 2), i64))
def join_logistic(statistics: Any, joined: Any, is_first: int) -> None:
    """joined = those of both; partitions come in the order of their units, so the first of equals stays."""
    for row in range(len(joined)):
        if is_first:
            joined[row] = statistics[row]
            continue
        joined[row, 1] += statistics[row, 1]
        if statistics[row, 0] > joined[row, 0]:
            joined[row, 0], joined[row, 2] = statistics[row, 0], statistics[row, 2]


@kernel((readable(f64, 2), readable(i32, 1)))
def count_logistic(joined: Any, labels: Any) -> tuple[float, int]:
    """Returns (summed loss, correct) from the statistics of all units."""
    loss, correct = 0.0, 0
    for row in range(len(labels)):
        loss += joined[row, 1]
        correct += 1 if joined[row, 2] == labels[row] else 0
    return loss, correct

"""Dropout's mask and its product with the inputs in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from adamctl.kernels.compiled.jit import IN1, IN2, OUT2, inline, kernel, readable, writable
from adamctl.kernels.numeric.mix import FACTORS, SHIFTS

u32 = types.uint32
FIRST, SECOND = FACTORS
HIGH, MIDDLE, LOW = SHIFTS


@inline
def mixed(value: Any) -> Any:
    """As `adamctl.kernels.numeric.mix.mix`."""
    value = np.uint32((value ^ (value >> HIGH)) * FIRST)
    value = np.uint32((value ^ (value >> MIDDLE)) * SECOND)
    return np.uint32(value ^ (value >> LOW))


@kernel((IN2, readable(u32, 1), writable(u32, 1), readable(u32, 1), IN1, OUT2, OUT2))
def drop(inputs: Any, positions: Any, hashes: Any, words: Any, scales: Any, mask: Any, outputs: Any) -> None:
    """outputs = inputs * mask [n, features]; mask = scale where the hash of (key, position, example) is kept.

    `words` are the key's two and the threshold; `mask` may have more rows.
    """
    rows, features = inputs.shape
    key, key_of_examples, threshold, scale = words[0], words[1], words[2], scales[0]
    for feature in range(features):
        hashes[feature] = mixed(np.uint32(positions[feature] + key))
    zero = np.float32(0)
    for row in range(rows):
        example, given, factor, output = mixed(np.uint32(row + key_of_examples)), inputs[row], mask[row], outputs[row]
        for feature in range(features):
            kept = mixed(np.uint32(hashes[feature] ^ example)) >= threshold
            factor[feature] = scale if kept else zero
        for feature in range(features):
            output[feature] = given[feature] * factor[feature]


@kernel((IN2, IN2, OUT2))
def drop_error(output_error: Any, mask: Any, input_error: Any) -> None:
    """input_error = output_error * mask, all [n, features]."""
    rows, features = output_error.shape
    for row in range(rows):
        given, factor, error = output_error[row], mask[row], input_error[row]
        for feature in range(features):
            error[feature] = given[feature] * factor[feature]

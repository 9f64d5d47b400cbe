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


WORDS = readable(u32, 1)


@kernel((IN2, WORDS, writable(u32, 1), WORDS, WORDS, IN1, OUT2, OUT2))
def drop(
    inputs: Any, positions: Any, hashes: Any, key: Any, words: Any, scales: Any, mask: Any, outputs: Any
) -> None:  # fmt: skip
    """outputs = inputs * mask [n, features]; mask = scale where the hash of (key, layer, position, example) is kept.

    `key` has two words; `words` are layer, threshold, and the place of the first example in its batch; `mask` may have
    more rows.
    """
    rows, features = inputs.shape
    layer, threshold, scale = words[0], words[1], scales[0]
    own, own_of_examples = mixed(np.uint32(key[0] + layer)), np.uint32(mixed(np.uint32(key[1] + layer)) + words[2])
    for feature in range(features):
        hashes[feature] = mixed(np.uint32(positions[feature] + own))
    zero = np.float32(0)
    for row in range(rows):
        example, given, factor, output = mixed(np.uint32(row + own_of_examples)), inputs[row], mask[row], outputs[row]
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

"""Dropout's mask and its product with the inputs in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from adamctl.kernels.compiled.jit import IN2, OUT2, f32, inline, kernel, readable, writable
from adamctl.kernels.dropout import FACTORS, SHIFTS

u32 = types.uint32
FIRST, SECOND = FACTORS
HIGH, MIDDLE, LOW = SHIFTS


@inline
def mixed(value: Any) -> Any:
    """As `adamctl.kernels.dropout.mix`."""
    value = np.uint32((value ^ (value >> HIGH)) * FIRST)
    value = np.uint32((value ^ (value >> MIDDLE)) * SECOND)
    return np.uint32(value ^ (value >> LOW))


@kernel((IN2, readable(u32, 1), readable(u32, 1), writable(u32, 1), u32, u32, f32, OUT2, OUT2))
def drop(
    inputs: Any, positions: Any, examples: Any, hashes: Any, key: Any, threshold: Any, scale: Any,
    mask: Any, outputs: Any,
) -> None:  # fmt: skip
    """outputs = inputs * mask, all [n, features]; mask = scale where the hash of (key, position, example) is kept."""
    rows, features = inputs.shape
    for feature in range(features):
        hashes[feature] = mixed(np.uint32(positions[feature] + key))
    zero = np.float32(0)
    for row in range(rows):
        example, given, factor, output = examples[row], inputs[row], mask[row], outputs[row]
        for feature in range(features):
            kept = mixed(np.uint32(hashes[feature] ^ example)) >= threshold
            factor[feature] = scale if kept else zero
        for feature in range(features):
            output[feature] = given[feature] * factor[feature]

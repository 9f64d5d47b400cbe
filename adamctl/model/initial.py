"""Initial parameter values, the same for every row however the model is split over servers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adamctl.model.layout import Tensor


def initial_rows(tensor: Tensor, tensor_index: int, row_start: int, row_stop: int, seed: int) -> NDArray[np.float32]:
    """Returns the initial values of rows [row_start, row_stop), shape (rows, row_size), float32.

    Each row has its own counter-based stream, keyed by (seed, tensor, row), so a server draws exactly its own rows.
    """
    values = np.zeros((row_stop - row_start, tensor.row_size), np.float32)
    if tensor.distribution in ("zeros", "given"):
        return values
    if tensor.distribution == "constant":
        values.fill(tensor.scale)
        return values
    for row in range(row_start, row_stop):
        generator = np.random.Generator(
            np.random.Philox(key=np.array([seed & (2**64 - 1), tensor_index << 40 | row], np.uint64))
        )
        if tensor.distribution == "normal":
            drawn = generator.standard_normal(tensor.row_size, np.float32) * np.float32(tensor.scale)
        else:
            drawn = (generator.random(tensor.row_size, np.float32) * 2 - 1) * np.float32(tensor.scale)
        values[row - row_start] = drawn
    return values

"""Turns factors into the gradient of a range of a dense layer's outputs (Adam 3.2.6, 4.3.2): g = E^T A."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array


def gradient_rows(errors: Array, activations: Array, row_start: int, row_stop: int, out: Array) -> Array:
    """Writes rows [row_start, row_stop) of the gradient into `out` [row_stop - row_start, inputs] and returns it.

    errors [k, outputs] may hold all outputs of the layer; activations [k, inputs]. One call over many adjacent rows
    is faster than one per shard: the product runs at full rate from a few hundred rows on.

    Raises:
        ValueError: the shapes do not fit together.
    """
    rows, inputs = row_stop - row_start, activations.shape[1]
    fits = errors.shape[0] == activations.shape[0] and 0 <= row_start <= row_stop <= errors.shape[1]
    if not fits or out.shape != (rows, inputs):
        raise ValueError(
            f"factors: errors {list(errors.shape)} and activations {list(activations.shape)} do not give rows "
            f"{row_start} to {row_stop} of shape {list(out.shape)}"
        )
    if not len(errors):
        out[...] = 0
        return out
    return np.matmul(errors[:, row_start:row_stop].T, activations, out=out)

"""Turns factors into the gradient of a range of a dense layer's outputs (Adam 3.2.6, 4.3.2): g = E^T A.

`gradient_rows` makes that gradient. `FactorUpdate` applies it to the layer's shards through a rule: compiled, tile by
tile as it is summed, so that it is never in memory; else as one product for many adjacent shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule, address


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


def is_fused(rule: Rule) -> bool:
    """Whether the gradient is applied as it is summed, so that any number of rows may be begun at once."""
    return rule.backend == "numba"


class FactorUpdate:
    """Applies one update, given as factors, to one shard after another. For one thread; buffers are kept and grow.

    `begin` takes the factors and a range of rows; then `apply` is called once for each shard in that range.
    """

    def __init__(self) -> None:
        self._product = np.empty(0, np.float32)
        self._packed = (np.empty(0, np.float32), np.empty(0, np.float32))
        self._packed_shape: tuple[int, ...] | None = None
        self._compiled: Any = None
        self._errors = self._activations = np.empty((0, 0), np.float32)
        self._row_start = self._row_stop = 0

    def begin(
        self, rule: Rule, errors: Array, activations: Array, row_start: int, row_stop: int, *, same: bool = False
    ) -> None:
        """Takes errors [k, outputs] and activations [k, inputs], C-contiguous and unchanged until the last `apply`.

        `same`: the activations hold what those of the `begin` before did, so they need not be packed again.

        Raises:
            ValueError: the shapes do not fit together, or the arrays are not contiguous float32.
        """
        if len(errors) != len(activations) or not 0 <= row_start <= row_stop <= errors.shape[1]:
            raise ValueError(
                f"factors: errors {list(errors.shape)} and activations {list(activations.shape)} do not give rows "
                f"{row_start} to {row_stop}"
            )
        if any(array.dtype != np.float32 or not array.flags.c_contiguous for array in (errors, activations)):
            raise ValueError(f"factors: expected C-contiguous float32; found {errors.dtype} and {activations.dtype}")
        self._errors, self._activations = errors, activations
        self._row_start, self._row_stop = row_start, row_stop
        self._compiled = compiled_if(rule.backend, "factors")
        if self._compiled is not None and same and self._packed_shape == activations.shape:
            return
        self._packed_shape = None
        if self._compiled is not None:
            self._pack(1, activations, 0, activations.shape[1], self._compiled.COLUMNS)
            self._packed_shape = activations.shape
            return
        size = (row_stop - row_start) * activations.shape[1]
        self._product = self._product if self._product.size >= size else np.empty(size, np.float32)
        product = self._product[:size].reshape(row_stop - row_start, -1)
        gradient_rows(errors, activations, row_start, row_stop, product)

    def apply(
        self, rule: Rule, weights_in: Array, weights_out: Array, state: list[Array], row_start: int, lr: float
    ) -> None:
        """As `rule.apply` with the gradient's rows from `row_start` on, as many as the weights have.

        Raises:
            ValueError: the weights are not whole rows inside the range that was begun, or as `rule.apply`.
        """
        inputs = self._activations.shape[1]
        rows = weights_in.size // inputs if inputs else 0
        if rows * inputs != weights_in.size or not self._row_start <= row_start <= self._row_stop - rows:
            raise ValueError(
                f"factors: expected weights of rows of {inputs} from {self._row_start} to {self._row_stop}; found "
                f"{weights_in.size} from row {row_start}"
            )
        if self._compiled is None:
            start = (row_start - self._row_start) * inputs
            rule.apply(weights_in, weights_out, state, self._product[start : start + weights_in.size], lr)
            return
        rule.check(weights_in, weights_out, state, (), ())
        if not weights_in.size:
            return
        errors = self._pack(0, self._errors, row_start, row_start + rows, self._compiled.ROWS)
        getattr(self._compiled, rule.compiled_name())(
            address(weights_in),
            address(weights_out),
            np.array([address(array) for array in rule.per_element(state)], np.int64),
            errors,
            self._packed[1],
            np.array(rule.numbers_of(lr, state, 1), np.float32),
            np.array(rule.constants(), np.float32),
            len(self._errors),
            rows,
            inputs,
        )
        rule.count(state, 1)

    def _pack(self, which: int, matrix: Array, start: int, stop: int, width: int) -> Array:
        size = -(-(stop - start) // width) * width * len(matrix)
        if self._packed[which].size < size:
            packed = list(self._packed)
            packed[which] = np.empty(size, np.float32)
            self._packed = (packed[0], packed[1])
        self._compiled.pack(matrix, start, stop, width, self._packed[which])
        return self._packed[which]


def apply_factors(
    rule: Rule,
    weights: Sequence[Array],
    states: Sequence[list[Array]],
    errors: Array,
    activations: Array,
    lr: float,
    update: FactorUpdate | None = None,
) -> None:
    """Applies one update in place to adjacent shards, the first of which begins with row 0: what benchmarks time.

    weights: 1-D, each some whole rows of the layer [outputs, inputs]; states: as many; errors [k, outputs],
    activations [k, inputs].

    Raises:
        ValueError: as `FactorUpdate`.
    """
    update = update or FactorUpdate()
    inputs = activations.shape[1]
    update.begin(rule, errors, activations, 0, sum(shard.size for shard in weights) // max(inputs, 1))
    row = 0
    for shard, state in zip(weights, states, strict=True):
        update.apply(rule, shard, shard, state, row, lr)
        row += shard.size // max(inputs, 1)

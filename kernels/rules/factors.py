"""Turns factors into the gradient of a range of a dense layer's outputs (Adam 3.2.6, 4.3.2): g = E^T A.

`gradient_rows` computes that gradient. `FactorUpdate` applies it to the layer's shards with a rule: if compiled, tile
by tile as it is summed, so that it is never stored; otherwise as one product for many adjacent shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

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
    """Whether the gradient is applied as it is summed, so that any number of rows may be started at once."""
    return rule.backend == "numba"


ShardUpdate: TypeAlias = tuple[int, Array, Array, list[Array]]
"""The number of a started shard, its weights before and after (maybe the same), and its state."""


class FactorUpdate:
    """Applies one update, given as factors, to shards of a layer. For one thread; buffers are reused and grow.

    `begin` takes the factors and the rows of the shards; then call `apply` for any of them, once each.
    """

    def __init__(self) -> None:
        self._product = np.empty(0, np.float32)
        self._packed_errors = self._packed_activations = np.empty(0, np.float32)
        self._packed_shape: tuple[int, ...] | None = None
        self._compiled: Any = None
        self._errors = self._activations = np.empty((0, 0), np.float32)
        self._bounds: Sequence[int] = (0,)
        self._starts: list[int] = []

    def begin(
        self, rule: Rule, errors: Array, activations: Array, bounds: Sequence[int], *, same: bool = False
    ) -> None:
        """Takes errors [k, outputs] and activations [k, inputs], C-contiguous and unchanged until the last `apply`.

        `bounds`: shard n has rows [bounds[n], bounds[n + 1]) of the layer's outputs. `same`: the activations have the
        same content as in the last `begin`, so they need not be packed again.

        Raises:
            ValueError: the shapes do not fit together, or the arrays are not contiguous float32.
        """
        rising = all(before <= after for before, after in zip((0, *bounds), (*bounds, errors.shape[1]), strict=True))
        if len(errors) != len(activations) or not rising:
            raise ValueError(
                f"factors: errors {list(errors.shape)} and activations {list(activations.shape)} do not give rows "
                f"{', '.join(map(str, bounds))}"
            )
        if any(array.dtype != np.float32 or not array.flags.c_contiguous for array in (errors, activations)):
            raise ValueError(f"factors: expected C-contiguous float32; found {errors.dtype} and {activations.dtype}")
        self._errors, self._activations, self._bounds = errors, activations, bounds
        self._compiled = compiled_if(rule.backend, "factors")
        if self._compiled is not None:
            self._pack(same)
            return
        self._packed_shape = None
        rows = bounds[-1] - bounds[0]
        size = rows * activations.shape[1]
        self._product = _of_size(self._product, size)
        gradient_rows(errors, activations, bounds[0], bounds[-1], self._product[:size].reshape(rows, -1))

    def apply(self, rule: Rule, shards: Sequence[ShardUpdate], lr: float) -> None:
        """Does `rule.apply` for each shard with the gradient of its rows; applies nothing if any of them does not fit.

        Raises:
            ValueError: the number of weights is not the shard's, or as `rule.apply`.
        """
        inputs = self._activations.shape[1]
        for number, weights_in, weights_out, state in shards:
            first, stop = self._bounds[number], self._bounds[number + 1]
            if weights_in.size != (stop - first) * inputs:
                raise ValueError(
                    f"factors: expected weights of rows {first} to {stop} of {inputs} each; found {weights_in.size}"
                )
            rule.check(weights_in, weights_out, state, (), ())
        if self._compiled is not None:
            self._apply_compiled(rule, shards, lr)
            return
        for number, weights_in, weights_out, state in shards:
            start = (self._bounds[number] - self._bounds[0]) * inputs
            rule.apply(weights_in, weights_out, state, self._product[start : start + weights_in.size], lr)

    def _apply_compiled(self, rule: Rule, shards: Sequence[ShardUpdate], lr: float) -> None:
        """All in one call: between two calls one would wait for the interpreter, with none of it in cache."""
        words: list[int] = []
        states: list[int] = []
        numbers: list[float] = []
        shards = [shard for shard in shards if shard[1].size]
        for number, weights_in, weights_out, state in shards:
            rows = self._bounds[number + 1] - self._bounds[number]
            words += (address(weights_in), address(weights_out), self._starts[number], rows)
            states += (address(array) for array in rule.per_element(state))
            numbers += rule.numbers_of(lr, state, 1)
        getattr(self._compiled, rule.compiled_name())(
            np.array(words, np.int64),
            np.array(states, np.int64),
            self._packed_errors,
            self._packed_activations,
            np.array(numbers, np.float32),
            np.array(rule.constants(), np.float32),
            len(self._errors),
            self._activations.shape[1],
        )
        for _, _, _, state in shards:
            rule.count(state, 1)

    def _pack(self, same: bool) -> None:
        width, bounds, examples = self._compiled.ROWS, self._bounds, len(self._errors)
        sizes = (-(-(after - before) // width) * width * examples for before, after in pairwise(bounds))
        self._starts = [0, *accumulate(sizes)]
        self._packed_errors = _of_size(self._packed_errors, self._starts[-1])
        self._compiled.pack_errors(self._errors, np.array(bounds, np.int64), self._packed_errors)
        if same and self._packed_shape == self._activations.shape:
            return
        width = self._compiled.COLUMNS
        size = -(-self._activations.shape[1] // width) * width * examples
        self._packed_shape = None
        self._packed_activations = _of_size(self._packed_activations, size)
        self._compiled.pack_activations(self._activations, self._packed_activations)
        self._packed_shape = self._activations.shape


def _of_size(buffer: Array, size: int) -> Array:
    """Returns a buffer of at least this size: this one, or a new one."""
    return buffer if buffer.size >= size else np.empty(size, np.float32)


def apply_factors(
    rule: Rule,
    weights: Sequence[Array],
    states: Sequence[list[Array]],
    errors: Array,
    activations: Array,
    lr: float,
    update: FactorUpdate | None = None,
) -> None:
    """Applies one update in place to adjacent shards, of which the first starts at row 0; used by benchmarks.

    weights: 1-D, each some whole rows of the layer [outputs, inputs]; states: as many; errors [k, outputs],
    activations [k, inputs].

    Raises:
        ValueError: as `FactorUpdate`.
    """
    update = update or FactorUpdate()
    inputs = max(activations.shape[1], 1)
    update.begin(rule, errors, activations, [0, *accumulate(shard.size // inputs for shard in weights)])
    parts = zip(range(len(weights)), weights, weights, states, strict=True)
    update.apply(rule, list(parts), lr)

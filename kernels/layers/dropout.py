"""Inverted dropout: in training, each input is zeroed with probability `rate`, the rest is scaled by 1 / (1 - rate).

Outside training the layer is the identity, so nothing needs scaling there (Srivastava et al. 2014, section 10). Whether
an input is kept depends on the step's key (seed, pass and first example of the batch), the layer, the example's place
in the batch and the input's place in the layer, and on nothing else: h = mix(mix(position + mix(low + layer)) ^
mix(example + mix(high + layer))), kept where h >= rate * 2^32; low and high are the key's words. So all threads and
implementations make the same mask of a batch, and a slice computes, without its neighbours, exactly its part of it. A
part of a batch is told the place of its first example (`Dropout.first_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import Backend, choose, compiled_if
from adamctl.kernels.native import Call, NativeCall
from adamctl.kernels.numeric.mix import WORD_BITS, Words, mix
from adamctl.kernels.operation import Array, Buffers, Key, Operation, SlicedOperation, empty_buffers
from adamctl.kernels.slicing import OutputSlice, Region, check_slice


class Dropout(Operation):
    """Inputs and outputs [n, *input_shape]. The mask is kept for backward; NaN stays NaN, dropped or not."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        rate: float,
        backend: str | None = None,
        positions: NDArray[np.uint32] | None = None,
        layer: int = 0,
    ) -> None:
        """Args:
        positions: [*input_shape], the inputs' places in the whole layer if this is a slice of one.
        layer: a number that no other dropout of the network has.
        """
        super().__init__(input_shape, input_shape)
        self.rate, self.features = rate, prod(input_shape)
        self.backend: Backend = choose(backend)
        self._compiled = compiled_if(self.backend, "dropout")
        places = np.arange(self.features, dtype=np.uint32) if positions is None else positions.reshape(self.features)
        self.positions: Words = np.ascontiguousarray(places)
        self.layer, self._threshold = layer, np.uint32(min(round(rate * 2**WORD_BITS), 2**WORD_BITS - 1))

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        buffers.scratch["mask"] = np.ones((batch_max, self.features), dtype)
        buffers.scratch["position_hashes"] = np.zeros(self.features, np.uint32)
        buffers.scratch["words"] = np.array([self.layer, self._threshold, 0], np.uint32)
        buffers.scratch["scale"] = np.array([1 / (1 - self.rate)], np.float32)
        if self._compiled is None:
            buffers.scratch["own_key"] = np.zeros(2, np.uint32)
            buffers.scratch["examples"] = np.arange(batch_max, dtype=np.uint32)
            buffers.scratch["example_hashes"] = np.zeros(batch_max, np.uint32)
            for name in ("hashes", "shifted"):
                buffers.scratch[name] = np.zeros((max(batch_max, 1), max(self.features, batch_max, 2)), np.uint32)
        return buffers

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        """outputs = inputs * mask / (1 - rate) while training, inputs otherwise."""
        self._check_inputs(inputs, buffers)
        batch = inputs.shape[0]
        outputs = buffers.output[:batch]
        if not training:
            outputs[...] = inputs
            return outputs
        rows = batch, self.features
        if self._compiled is not None:
            self._compiled.drop(inputs.reshape(rows), *self._arguments(batch, buffers, key))
        else:
            self._drop(inputs.reshape(rows), outputs.reshape(rows), buffers, key)
        return outputs

    def backward(
        self,
        output_error: Array,
        inputs: Array,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool = True,
    ) -> Array | None:
        """input error = output error * mask / (1 - rate)."""
        self._check("output error", output_error, self.output_shape)
        if not needs_input_error:
            return None
        batch = len(output_error)
        error = buffers.input_error[:batch]
        np.multiply(output_error, buffers.scratch["mask"][:batch].reshape(error.shape), out=error)
        return error

    @staticmethod
    def first_of(buffers: Buffers) -> Words:
        """Returns the word that says which example of its batch is the first of what comes, where that is a part."""
        words: Words = buffers.scratch["words"][2:]  # type: ignore[assignment]
        return words

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts a vector by units, an image by rows or maps; each part reads the same region that it writes."""
        flat = len(self.output_shape) == 1
        check_slice(part, self.output_shape, ("units",) if flat else ("rows", "maps"), type(self).__name__)
        own, every = slice(part.start, part.stop), slice(None)
        others = (every,) * (len(self.output_shape) - 1)
        region: Region = (*others, own) if part.axis == "maps" else (own, *others)
        positions = self.positions.reshape(self.input_shape)[region]
        return SlicedOperation(
            Dropout(positions.shape, self.rate, self.backend, positions, self.layer), region, region, ()
        )

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        rows = inputs.reshape(batch, self.features)
        return [NativeCall(self._compiled.drop, (rows, *self._arguments(batch, buffers, key)))]

    def native_backward(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        output_error: Array,
        inputs: Array,
        needs_input_error: bool,
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        if not needs_input_error:
            return []
        rows, mask = (batch, self.features), buffers.scratch["mask"][:batch]
        error = buffers.input_error[:batch].reshape(rows)
        return [NativeCall(self._compiled.drop_error, (output_error.reshape(rows), mask, error))]

    def _arguments(self, batch: int, buffers: Buffers, key: Key) -> tuple[Any, ...]:
        """Returns the compiled forward's arguments after the inputs."""
        names = ("position_hashes", "words", "scale", "mask")
        hashes, words, scale, mask = (buffers.scratch[name] for name in names)
        outputs = buffers.output[:batch].reshape(batch, self.features)
        return self.positions, hashes, key, words, scale, mask, outputs

    def _drop(self, inputs: Array, outputs: Array, buffers: Buffers, key: Key) -> None:
        """Computes a step's mask and outputs = inputs * mask, all [n, features]."""
        batch = len(inputs)
        scratch: dict[str, Words] = buffers.scratch  # type: ignore[assignment]
        (layer, threshold, first), own = scratch["words"], scratch["own_key"]
        hashes, shifted = scratch["hashes"], scratch["shifted"]
        np.add(key, layer, out=own)
        mix(own, shifted[0, :2])
        own[1:] += first
        low, high = own
        examples, by_position = scratch["example_hashes"][:batch], scratch["position_hashes"]
        np.add(scratch["examples"][:batch], high, out=examples)
        mix(examples, shifted[0, :batch])
        mask: Array = buffers.scratch["mask"][:batch]  # type: ignore[assignment]
        np.add(self.positions, low, out=by_position)
        mix(by_position, shifted[0, : self.features])
        drawn = hashes[:batch, : self.features]
        np.bitwise_xor(by_position, examples[:, None], out=drawn)
        mix(drawn, shifted[:batch, : self.features])
        np.greater_equal(drawn, threshold, out=mask, casting="unsafe")
        mask *= 1 / (1 - self.rate)
        np.multiply(inputs, mask, out=outputs)

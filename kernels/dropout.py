"""Inverted dropout: while training each input is zeroed with probability `rate`, the rest scaled by 1 / (1 - rate).

Outside training the layer is the identity, so nothing needs scaling there (Srivastava et al. 2014, section
10).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.operation import Array, Buffers, Operation, empty_buffers


class Dropout(Operation):
    """Inputs and outputs [n, *input_shape]. The mask is drawn from the thread's generator and kept for backward."""

    def __init__(self, input_shape: tuple[int, ...], rate: float, backend: str | None = None) -> None:
        super().__init__(input_shape, input_shape)
        self.rate = rate

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        buffers.scratch["mask"] = np.ones((batch_max, *self.input_shape), dtype)
        buffers.scratch["drawn"] = np.zeros((batch_max, *self.input_shape), np.float32)
        return buffers

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        generator: np.random.Generator,
    ) -> Array:
        """outputs = inputs * mask / (1 - rate) while training, inputs otherwise."""
        self._check("inputs", inputs, self.input_shape)
        rows = inputs.shape[0]
        outputs = buffers.output[:rows]
        mask: Array = buffers.scratch["mask"][:rows]  # type: ignore[assignment]
        drawn: Array = buffers.scratch["drawn"][:rows]  # type: ignore[assignment]
        if not training:
            outputs[...] = inputs
            return outputs
        generator.random(dtype=np.float32, out=drawn)
        np.greater_equal(drawn, np.float32(self.rate), out=mask, casting="unsafe")
        mask *= 1 / (1 - self.rate)
        np.multiply(inputs, mask, out=outputs)
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
        rows = len(output_error)
        error = buffers.input_error[:rows]
        np.multiply(output_error, buffers.scratch["mask"][:rows], out=error)
        return error

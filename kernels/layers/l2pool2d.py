"""L2 pooling: the root of the sum of squares over windows, per channel (DistBelief 5; Le et al. 2012, section 3).

outputs[n, y, x, c] = sqrt(sum over (dy, dx) of inputs[n, y*sy + dy, x*sx + dx, c]^2). The derivative is input /
output, between -1 and 1; for a window of zeros, the only case without a derivative, it is taken as 0. (Le et al. add
a small constant under the root instead, which gives the same 0 there but makes no output exactly 0.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.layers.pooling import Pooling2D
from adamctl.kernels.native import Call, NativeCall
from adamctl.kernels.operation import Array, Buffers, Key, empty_buffers
from adamctl.model.description import Size


class L2Pool2D(Pooling2D):
    """Inputs [n, height, width, channels], outputs [n, (height - size) // stride + 1, ..., channels].

    NaN in a window makes its output NaN. Squares are float32: numbers beyond 1e19 give infinity, and windows of
    numbers below 1e-23 count as zeros.
    """

    def __init__(
        self, input_shape: tuple[int, ...], size: Size, stride: Size | None = None, backend: str | None = None
    ) -> None:
        super().__init__(input_shape, size, stride, backend)
        self._compiled = compiled_if(self.backend, "local")

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        if self._compiled is not None:
            buffers.scratch["share"] = np.zeros(self.output_shape[2], dtype)
        else:
            buffers.scratch["squares"] = np.zeros((batch_max, *self.output_shape), dtype)
        return buffers

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        self._check_inputs(inputs, buffers)
        outputs = buffers.output[: len(inputs)]
        if self._compiled is not None:
            self._compiled.l2pool_forward(inputs, outputs, *self.size, *self.stride)
            return outputs
        squares: Array = buffers.scratch["squares"][: len(inputs)]  # type: ignore[assignment]
        outputs[...] = 0
        for window in self.windows(inputs):
            np.multiply(window, window, out=squares)
            outputs += squares
        np.sqrt(outputs, out=outputs)
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
        """input error = sum over a pixel's windows of output error * input / output."""
        self._check("output error", output_error, self.output_shape)
        if not needs_input_error:
            return None
        batch = len(inputs)
        outputs, error = buffers.output[:batch], buffers.input_error[:batch]
        if self._compiled is not None:
            share = buffers.scratch["share"]
            self._compiled.l2pool_backward(inputs, outputs, output_error, share, error, *self.size, *self.stride)
            return error
        scaled: Array = buffers.scratch["squares"][:batch]  # type: ignore[assignment]
        np.divide(output_error, outputs, out=output_error, where=outputs != 0)
        np.copyto(output_error, 0, where=outputs == 0)
        error[...] = 0
        for pixels, into in zip(self.windows(inputs), self.windows(error), strict=True):
            np.multiply(output_error, pixels, out=scaled)
            into += scaled
        return error

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        return [NativeCall(self._compiled.l2pool_forward, (inputs, buffers.output[:batch], *self.size, *self.stride))]

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
        outputs, share, error = buffers.output[:batch], buffers.scratch["share"], buffers.input_error[:batch]
        arrays = (inputs, outputs, output_error, share, error)
        return [NativeCall(self._compiled.l2pool_backward, (*arrays, *self.size, *self.stride))]

"""Max-pooling (Adam 2.1): the maximum over windows [size] that start every [stride] pixels, per channel.

outputs[n, y, x, c] = max over (dy, dx) of inputs[n, y*sy + dy, x*sx + dx, c]. The error goes to the first
maximum of the window, row by row; where windows overlap it adds up. Pixels outside all windows get none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.layers.pooling import Pooling2D
from adamctl.kernels.native import Call, NativeCall
from adamctl.kernels.operation import Array, Buffers, Key, empty_buffers
from adamctl.model.description import Size

Indices = NDArray[np.int32]


class MaxPool2D(Pooling2D):
    """Inputs [n, height, width, channels], outputs [n, (height - size) // stride + 1, ..., channels].

    A NaN in a window is its maximum. `scratch["winner"]` keeps which pixel of the window won, dy * width + dx.
    """

    def __init__(
        self, input_shape: tuple[int, ...], size: Size, stride: Size | None = None, backend: str | None = None
    ) -> None:
        super().__init__(input_shape, size, stride, backend)
        self._compiled = compiled_if(self.backend, "images")

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        buffers.scratch["winner"] = np.zeros((batch_max, *self.output_shape), np.int32)
        return buffers

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        self._check("inputs", inputs, self.input_shape)
        batch = inputs.shape[0]
        outputs = buffers.output[:batch]
        winner: Indices = buffers.scratch["winner"][:batch]  # type: ignore[assignment]
        if self._compiled is not None:
            self._compiled.maxpool_forward(inputs, outputs, winner, *self.size, *self.stride)
        else:
            self._forward_numpy(inputs, outputs, winner)
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
        self._check("output error", output_error, self.output_shape)
        if not needs_input_error:
            return None
        batch = len(output_error)
        error = buffers.input_error[:batch]
        winner: Indices = buffers.scratch["winner"][:batch]  # type: ignore[assignment]
        if self._compiled is not None:
            self._compiled.maxpool_backward(output_error, winner, error, *self.size, *self.stride)
        else:
            error[...] = 0
            for number, window in enumerate(self.windows(error)):
                window += np.where(winner == number, output_error, 0)
        return error

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        return [
            NativeCall(
                self._compiled.maxpool_forward,
                (inputs, buffers.output[:batch], buffers.scratch["winner"][:batch], *self.size, *self.stride),
            )
        ]

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
        arrays = (output_error, buffers.scratch["winner"][:batch], buffers.input_error[:batch])
        return [NativeCall(self._compiled.maxpool_backward, (*arrays, *self.size, *self.stride))]

    def _forward_numpy(self, inputs: Array, outputs: Array, winner: Indices) -> None:
        for number, window in enumerate(self.windows(inputs)):
            if number == 0:
                outputs[...] = window
                winner[...] = 0
                continue
            better = (window > outputs) | (np.isnan(window) & ~np.isnan(outputs))
            np.copyto(outputs, window, where=better)
            np.copyto(winner, np.int32(number), where=better)

"""Max-pooling (Adam 2.1): the maximum over windows [size] that start every [stride] pixels, per channel.

outputs[n, y, x, c] = max over (dy, dx) of inputs[n, y*sy + dy, x*sx + dx, c]. The error goes to the first
maximum of the window, row by row; where windows overlap it adds up. Pixels no window reaches get none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.operation import Array, Buffers, Operation, empty_buffers, image_shape
from adamctl.kernels.slicing import OutputSlice, SlicedOperation, check_slice, halo
from adamctl.model.description import Size, pair
from adamctl.model.shapes import window_output

Indices = NDArray[np.int32]


class MaxPool2D(Operation):
    """Inputs [n, height, width, channels], outputs [n, (height - size) // stride + 1, ..., channels].

    A NaN in a window is its maximum. `scratch["winner"]` keeps which pixel of the window won, dy * width + dx.
    """

    def __init__(
        self, input_shape: tuple[int, ...], size: Size, stride: Size | None = None, backend: str | None = None
    ) -> None:
        height, width, channels = image_shape(input_shape)
        self.size = pair(size)
        self.stride = self.size if stride is None else pair(stride)
        rows = window_output(height, self.size[0], self.stride[0], "valid")
        columns = window_output(width, self.size[1], self.stride[1], "valid")
        super().__init__(input_shape, (rows, columns, channels))
        if rows < 1 or columns < 1:
            raise ValueError(f"MaxPool2D: expected a window that fits {height}x{width}; found {list(self.size)}")
        self.backend = choose(backend)
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
        generator: np.random.Generator,
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
            for number, window in self._windows(error):
                window += np.where(winner == number, output_error, 0)
        return error

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts into `maps` or `rows`; where windows overlap, rows of the inputs are read by two parts."""
        check_slice(part, self.output_shape, ("maps", "rows"), "MaxPool2D")
        height, width, channels = image_shape(self.input_shape)
        every, made = slice(None), slice(part.start, part.stop)
        if part.axis == "maps":
            operation = MaxPool2D((height, width, part.stop - part.start), self.size, self.stride, self.backend)
            return SlicedOperation(operation, (every, every, made), (every, every, made), ())
        read, _ = halo(part.start, part.stop, height, self.size[0], self.stride[0])
        operation = MaxPool2D((read.stop - read.start, width, channels), self.size, self.stride, self.backend)
        return SlicedOperation(operation, (read, every, every), (made, every, every), ())

    def _windows(self, images: Array) -> list[tuple[int, Array]]:
        """Returns, for each pixel of the window, its number and the view of all windows' such pixels."""
        rows, columns, _ = self.output_shape
        views = []
        for dy in range(self.size[0]):
            for dx in range(self.size[1]):
                below, right = dy + (rows - 1) * self.stride[0] + 1, dx + (columns - 1) * self.stride[1] + 1
                view = images[:, dy : below : self.stride[0], dx : right : self.stride[1]]
                views.append((dy * self.size[1] + dx, view))
        return views

    def _forward_numpy(self, inputs: Array, outputs: Array, winner: Indices) -> None:
        for number, window in self._windows(inputs):
            if number == 0:
                outputs[...] = window
                winner[...] = 0
                continue
            better = (window > outputs) | (np.isnan(window) & ~np.isnan(outputs))
            np.copyto(outputs, window, where=better)
            np.copyto(winner, np.int32(number), where=better)

"""L2 pooling: the root of the sum of squares over windows, per channel (DistBelief 5; Le et al. 2012, section 3).

outputs[n, y, x, c] = sqrt(sum over (dy, dx) of inputs[n, y*sy + dy, x*sx + dx, c]^2). The derivative is input /
output, between -1 and 1; where a window is all zeros, the only place where it does not exist, it is taken as 0. (Le
et al. add a small constant under the root instead, which gives the same 0 there and makes no output quite 0.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from adamctl.kernels.backend import Backend, choose, compiled_if
from adamctl.kernels.operation import Array, Buffers, Operation, empty_buffers, image_shape
from adamctl.kernels.slicing import OutputSlice, SlicedOperation, check_slice, halo
from adamctl.model.description import Size, pair
from adamctl.model.shapes import window_output


class L2Pool2D(Operation):
    """Inputs [n, height, width, channels], outputs [n, (height - size) // stride + 1, ..., channels].

    NaN in a window makes its output NaN. Squares are float32: numbers beyond 1e19 give infinity, and windows of
    numbers below 1e-23 count as zeros.
    """

    def __init__(
        self, input_shape: tuple[int, ...], size: Size, stride: Size | None = None, backend: str | None = None
    ) -> None:
        height, width, channels = image_shape(input_shape)
        self.size = pair(size)
        self.stride = self.size if stride is None else pair(stride)
        rows = window_output(height, self.size[0], self.stride[0], "valid")
        columns = window_output(width, self.size[1], self.stride[1], "valid")
        if rows < 1 or columns < 1:
            raise ValueError(f"L2Pool2D: expected a window that fits {height}x{width}; found {list(self.size)}")
        super().__init__(input_shape, (rows, columns, channels))
        self.backend: Backend = choose(backend)
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
        generator: np.random.Generator,
    ) -> Array:
        self._check_inputs(inputs, buffers)
        outputs = buffers.output[: len(inputs)]
        if self._compiled is not None:
            self._compiled.l2pool_forward(inputs, outputs, *self.size, *self.stride)
            return outputs
        squares: Array = buffers.scratch["squares"][: len(inputs)]  # type: ignore[assignment]
        outputs[...] = 0
        for window in self._windows(inputs):
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
        """input error = sum over the windows that a pixel is in of output error * input / output."""
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
        for pixels, into in zip(self._windows(inputs), self._windows(error), strict=True):
            np.multiply(output_error, pixels, out=scaled)
            into += scaled
        return error

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts by rows, which read the input rows of their windows, or by maps, which read their own."""
        check_slice(part, self.output_shape, ("rows", "maps"), type(self).__name__)
        own, every = slice(part.start, part.stop), slice(None)
        height, width, channels = image_shape(self.input_shape)
        if part.axis == "maps":
            shape, inputs, outputs = (height, width, part.stop - part.start), (every, every, own), (every, every, own)
        else:
            read, _ = halo(part.start, part.stop, height, self.size[0], self.stride[0])
            shape, inputs, outputs = (
                (read.stop - read.start, width, channels),
                (read, every, every),
                (own, every, every),
            )
        return SlicedOperation(L2Pool2D(shape, self.size, self.stride, self.backend), inputs, outputs, ())

    def _windows(self, images: Array) -> Iterator[Array]:
        """Yields, for each pixel of the window, the view of all windows' such pixels."""
        rows, columns, _ = self.output_shape
        for dy in range(self.size[0]):
            for dx in range(self.size[1]):
                below, right = dy + (rows - 1) * self.stride[0] + 1, dx + (columns - 1) * self.stride[1] + 1
                yield images[:, dy : below : self.stride[0], dx : right : self.stride[1]]

"""A convolution with one bias per map (Adam 2.1), as one matrix product over unfolded windows.

outputs[n, y, x, m] = f(b[m] + sum over (dy, dx, c) of W[m, dy, dx, c] * inputs[n, y*sy + dy - py, x*sx + dx
- px, c]), inputs outside the image being zero. The windows are unfolded into the rows of a matrix
(Chellapilla et al. 2006), so that forward, weight gradient and input error are one product each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from adamctl.kernels.activations import BiasActivation
from adamctl.kernels.backend import compiled_if
from adamctl.kernels.operation import Array, Buffers, Operation, empty_buffers, image_shape
from adamctl.model.description import Activation, Padding, Size, pair
from adamctl.model.shapes import same_padding, window_output


class Conv2D(Operation):
    """Images [n, height, width, channels], outputs [n, rows, columns, filters].

    Weight [filters, kernel height, kernel width, channels], bias [filters]. `padding` "same" adds zeros around so
    that ceil(size / stride) windows fit, the odd one below and to the right.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        filters: int,
        kernel: Size,
        stride: Size = 1,
        padding: Padding = "valid",
        activation: Activation | None = None,
        backend: str | None = None,
    ) -> None:
        height, width, channels = image_shape(input_shape)
        self.kernel, self.stride = pair(kernel), pair(stride)
        rows = window_output(height, self.kernel[0], self.stride[0], padding)
        columns = window_output(width, self.kernel[1], self.stride[1], padding)
        super().__init__(input_shape, (rows, columns, filters), [(filters, *self.kernel, channels), (filters,)])
        self.filters, self.window = filters, prod(self.kernel) * channels
        self.pad_rows = same_padding(height, self.kernel[0], self.stride[0]) if padding == "same" else (0, 0)
        self.pad_columns = same_padding(width, self.kernel[1], self.stride[1]) if padding == "same" else (0, 0)
        self.activation = BiasActivation(activation, backend)
        self._compiled = compiled_if(self.activation.backend, "images")

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        rows, columns, _ = self.output_shape
        buffers.scratch["windows"] = np.zeros((batch_max, rows, columns, self.window), dtype)
        if self._compiled is None:
            height, width, channels = self.input_shape
            padded = (batch_max, height + sum(self.pad_rows), width + sum(self.pad_columns), channels)
            buffers.scratch["padded"] = np.zeros(padded, dtype)
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
        windows: Array = buffers.scratch["windows"][:batch]  # type: ignore[assignment]
        self._unfold(inputs, windows, buffers)
        rows = outputs.reshape(-1, self.filters)
        np.matmul(windows.reshape(-1, self.window), weights[0].reshape(self.filters, self.window).T, out=rows)
        self.activation.forward(rows, weights[1])
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
        """With d the error before the activation and U the unfolded windows: gradient d^T U, folded input error d W."""
        self._check("output error", output_error, self.output_shape)
        batch = inputs.shape[0]
        error = output_error.reshape(-1, self.filters)
        self.activation.backward(buffers.output[:batch].reshape(-1, self.filters), error, gradients[1])
        windows: Array = buffers.scratch["windows"][:batch]  # type: ignore[assignment]
        flat = windows.reshape(-1, self.window)
        if gradients[0] is not None:
            np.matmul(error.T, flat, out=gradients[0].reshape(self.filters, self.window))
        if not needs_input_error:
            return None
        # The windows have served; their memory takes the windows' errors.
        np.matmul(error, weights[0].reshape(self.filters, self.window), out=flat)
        self._fold(windows, buffers.input_error[:batch], buffers)
        return buffers.input_error[:batch]

    def _unfold(self, images: Array, windows: Array, buffers: Buffers) -> None:
        """windows[n, y, x, (dy, dx, c)] = padded images[n, y*sy + dy, x*sx + dx, c]."""
        if self._compiled is not None:
            places = (*self.kernel, *self.stride, self.pad_rows[0], self.pad_columns[0])
            self._compiled.unfold(images, windows, *places)
            return
        padded = self._padded(buffers, len(images))
        padded[...] = 0
        self._inside(padded)[...] = images
        for taps, pixels in self._taps(windows, padded):
            taps[...] = pixels

    def _fold(self, windows: Array, images: Array, buffers: Buffers) -> None:
        """The transpose of `_unfold`: each image pixel gets the sum of its places in the windows."""
        if self._compiled is not None:
            places = (*self.kernel, *self.stride, self.pad_rows[0], self.pad_columns[0])
            self._compiled.fold(windows, images, *places)
            return
        padded = self._padded(buffers, len(images))
        padded[...] = 0
        for taps, pixels in self._taps(windows, padded):
            pixels += taps
        images[...] = self._inside(padded)

    def _padded(self, buffers: Buffers, batch: int) -> Array:
        padded: Array = buffers.scratch["padded"][:batch]  # type: ignore[assignment]
        return padded

    def _inside(self, padded: Array) -> Array:
        height, width, _ = self.input_shape
        top, left = self.pad_rows[0], self.pad_columns[0]
        return padded[:, top : top + height, left : left + width]

    def _taps(self, windows: Array, padded: Array) -> list[tuple[Array, Array]]:
        """Returns, for each place in the window, the views of all windows' such place and of the pixels there."""
        rows, columns, _ = self.output_shape
        shaped = windows.reshape(len(windows), rows, columns, *self.kernel, self.input_shape[2])
        views = []
        for dy in range(self.kernel[0]):
            for dx in range(self.kernel[1]):
                below, right = dy + (rows - 1) * self.stride[0] + 1, dx + (columns - 1) * self.stride[1] + 1
                pixels = padded[:, dy : below : self.stride[0], dx : right : self.stride[1]]
                views.append((shaped[:, :, :, dy, dx], pixels))
        return views

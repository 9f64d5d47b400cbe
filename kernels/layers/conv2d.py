"""A convolution with one bias per map (Adam 2.1), in groups of channels if wanted.

outputs[n, y, x, m] = f(b[m] + sum over (dy, dx, c) of W[m, dy, dx, c] * inputs[n, y*sy + dy - py, x*sx + dx
- px, g*C + c]), inputs outside the image being zero. With groups, channels and maps are split into that many equal
parts, and the maps of part g see only the C channels of part g.

The reference unfolds the windows into the rows of a matrix (Chellapilla et al. 2006), so that forward, weight gradient
and input error are one product each. The compiled version needs no such matrix:
`adamctl.kernels.layers.direct_convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from adamctl.kernels.layers.activations import CODES, BiasActivation
from adamctl.kernels.layers.direct_convolution import DirectConvolution, Extents
from adamctl.kernels.native import Call
from adamctl.kernels.operation import Array, Buffers, Key, Operation, SlicedOperation, empty_buffers, image_shape
from adamctl.kernels.slicing import OutputSlice, check_slice, halo
from adamctl.model.description import Activation, Padding, Size, pair
from adamctl.model.shapes import same_padding, window_output

Pads: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Zeros (above, below), (left, right) of an image."""
Cut: TypeAlias = slice


class Conv2D(Operation):
    """Images [n, height, width, channels], outputs [n, rows, columns, filters].

    Weight [filters, kernel height, kernel width, channels / groups], bias [filters]. `padding` "same" adds zeros around
    so that ceil(size / stride) windows fit, the odd one below and to the right; zeros may also be given by number, each
    less than the kernel's extent.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        filters: int,
        kernel: Size,
        stride: Size = 1,
        padding: Padding | Pads = "valid",
        activation: Activation | None = None,
        backend: str | None = None,
        groups: int = 1,
    ) -> None:
        height, width, channels = image_shape(input_shape)
        self.kernel, self.stride, self.groups = pair(kernel), pair(stride), groups
        if groups < 1 or channels % groups or filters % groups:
            raise ValueError(
                f"Conv2D: expected groups that divide {channels} channels and {filters} filters; found {groups}"
            )
        self.pad_rows, self.pad_columns = _pads(padding, (height, width), self.kernel, self.stride)
        rows = window_output(height + sum(self.pad_rows), self.kernel[0], self.stride[0], "valid")
        columns = window_output(width + sum(self.pad_columns), self.kernel[1], self.stride[1], "valid")
        if rows < 1 or columns < 1:
            raise ValueError(f"Conv2D: expected a kernel that fits {height}x{width}; found {list(self.kernel)}")
        group_channels = channels // groups
        super().__init__(input_shape, (rows, columns, filters), [(filters, *self.kernel, group_channels), (filters,)])
        self.filters, self.window = filters, prod(self.kernel) * group_channels
        self.activation = BiasActivation(activation, backend)
        self._direct: DirectConvolution | None = None
        if self.activation.backend == "numba":
            sizes = Extents(
                height, width, group_channels, filters // groups, groups, self.kernel, self.stride, self.pad_rows,
                self.pad_columns, rows, columns,
            )  # fmt: skip
            self._direct = DirectConvolution(sizes)

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        if self._direct is not None:
            if dtype != np.float32:
                raise ValueError(f"Conv2D: expected float32, as the compiled kernels need; found {dtype}")
            self._direct.allocate(buffers, needs_input_error)
            return buffers
        rows, columns, _ = self.output_shape
        height, width, channels = self.input_shape
        padded = (batch_max, height + sum(self.pad_rows), width + sum(self.pad_columns), channels)
        buffers.scratch["padded"] = np.zeros(padded, dtype)
        buffers.scratch["windows"] = np.zeros((self.groups, batch_max * rows * columns, self.window), dtype)
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
        self.check_room(len(inputs), weights, buffers)
        outputs = buffers.output[: len(inputs)]
        if self._direct is not None:
            code = CODES[self.activation.activation]
            self._direct.forward(inputs, weights[0], weights[1], outputs, buffers, code).make()
            return outputs
        padded = self._padded(buffers, len(inputs))
        padded[...] = 0
        self._inside(padded)[...] = inputs
        rows = outputs.reshape(-1, self.filters)
        for windows, maps, channels in self._groups(buffers, len(rows)):
            for taps, pixels in self._taps(windows, padded[..., channels]):
                taps[...] = pixels
            rows[:, maps] = windows @ weights[0][maps].reshape(-1, self.window).T
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
        batch = len(inputs)
        image_errors = buffers.input_error[:batch] if needs_input_error else None
        if self._direct is not None:
            code = CODES[self.activation.activation]
            self._direct.backward(
                inputs, weights[0], buffers.output[:batch], output_error, gradients[0], gradients[1], image_errors,
                buffers, code,
            ).make()  # fmt: skip
            return image_errors
        error = output_error.reshape(-1, self.filters)
        self.activation.backward(buffers.output[:batch].reshape(-1, self.filters), error, gradients[1])
        padded = self._padded(buffers, batch)
        padded[...] = 0
        for windows, maps, channels in self._groups(buffers, len(error)):
            if gradients[0] is not None:
                gradients[0][maps] = (error[:, maps].T @ windows).reshape(-1, *self.parameters[0][1:])
            if needs_input_error:
                # The windows are no longer needed; their memory is reused for the windows' errors.
                np.matmul(error[:, maps], weights[0][maps].reshape(-1, self.window), out=windows)
                for taps, pixels in self._taps(windows, padded[..., channels]):
                    pixels += taps
        if image_errors is not None:
            image_errors[...] = self._inside(padded)
        return image_errors

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self._direct is None:
            return None
        code = CODES[self.activation.activation]
        return [self._direct.forward(inputs, weights[0], weights[1], buffers.output[:batch], buffers, code)]

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
        if self._direct is None:
            return None
        image_errors = buffers.input_error[:batch] if needs_input_error else None
        call = self._direct.backward(
            inputs, weights[0], buffers.output[:batch], output_error, gradients[0], gradients[1], image_errors,
            buffers, CODES[self.activation.activation],
        )  # fmt: skip
        return [call]

    def check_room(self, batch: int, weights: Sequence[Array], buffers: Buffers) -> None:
        """Raises ValueError unless weights have their shapes and the batch fits: compiled code checks neither."""
        shapes = tuple(weight.shape for weight in weights)
        if shapes != self.parameters:
            raise ValueError(f"Conv2D: expected parameters of shapes {list(self.parameters)}; found {list(shapes)}")
        if batch > len(buffers.output):
            raise ValueError(f"Conv2D: expected at most {len(buffers.output)} examples; found {batch}")

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts into `maps` (of whole groups, or within one) or `rows`, whose inputs include a halo of rows."""
        check_slice(part, self.output_shape, ("maps", "rows"), "Conv2D")
        every = slice(None)
        if part.axis == "rows":
            lines, zeros = halo(
                part.start, part.stop, self.input_shape[0], self.kernel[0], self.stride[0], self.pad_rows[0]
            )
            shape = (lines.stop - lines.start, *self.input_shape[1:])
            operation = self._like(shape, self.filters, zeros, self.groups)
            outputs = (slice(part.start, part.stop), every, every)
            return SlicedOperation(operation, (lines, every, every), outputs, ((every,) * 4, (every,)))
        maps, size = slice(part.start, part.stop), self.filters // self.groups
        first, last = part.start // size, -(-part.stop // size)
        if last - first > 1 and (part.start % size or part.stop % size):
            raise ValueError(
                f"Conv2D: expected maps of whole groups of {size}, or of one; found {part.start} to {part.stop}"
            )
        per_group = self.input_shape[2] // self.groups
        channels = slice(first * per_group, last * per_group)
        shape = (*self.input_shape[:2], channels.stop - channels.start)
        operation = self._like(shape, part.stop - part.start, self.pad_rows, last - first)
        held = ((maps, every, every, every), (maps,))
        return SlicedOperation(operation, (every, every, channels), (every, every, maps), held)

    def _like(self, shape: tuple[int, ...], filters: int, pad_rows: tuple[int, int], groups: int) -> Conv2D:
        pads = (pad_rows, self.pad_columns)
        activation, backend = self.activation.activation, self.activation.backend
        return Conv2D(shape, filters, self.kernel, self.stride, pads, activation, backend, groups)

    def _groups(self, buffers: Buffers, pixels: int) -> list[tuple[Array, Cut, Cut]]:
        """Returns each group's windows [pixels, window], maps and channels."""
        windows: Array = buffers.scratch["windows"][:, :pixels]  # type: ignore[assignment]
        maps, channels = self.filters // self.groups, self.input_shape[2] // self.groups
        parts = range(self.groups)
        return [(windows[g], Cut(g * maps, (g + 1) * maps), Cut(g * channels, (g + 1) * channels)) for g in parts]

    def _padded(self, buffers: Buffers, batch: int) -> Array:
        padded: Array = buffers.scratch["padded"][:batch]  # type: ignore[assignment]
        return padded

    def _inside(self, padded: Array) -> Array:
        height, width, _ = self.input_shape
        top, left = self.pad_rows[0], self.pad_columns[0]
        return padded[:, top : top + height, left : left + width]

    def _taps(self, windows: Array, padded: Array) -> list[tuple[Array, Array]]:
        """Returns, for each place in the window, the views of that place in all windows and of the pixels there.

        windows[n, y, x, (dy, dx, c)] belongs to padded[n, y*sy + dy, x*sx + dx, c].
        """
        rows, columns, _ = self.output_shape
        shaped = windows.reshape(len(padded), rows, columns, *self.kernel, padded.shape[-1])
        views = []
        for dy in range(self.kernel[0]):
            for dx in range(self.kernel[1]):
                below, right = dy + (rows - 1) * self.stride[0] + 1, dx + (columns - 1) * self.stride[1] + 1
                pixels = padded[:, dy : below : self.stride[0], dx : right : self.stride[1]]
                views.append((shaped[:, :, :, dy, dx], pixels))
        return views


def _pads(padding: Padding | Pads, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> Pads:
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        return same_padding(size[0], kernel[0], stride[0]), same_padding(size[1], kernel[1], stride[1])
    for zeros, extent in zip(padding, kernel, strict=True):
        if not all(0 <= number < extent for number in zeros):
            raise ValueError(f"Conv2D: expected 0 to {extent - 1} zeros beside a kernel of {extent}; found {zeros}")
    return padding

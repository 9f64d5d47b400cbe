"""A locally connected layer (DistBelief 5): a convolution in which every place has its own weights and biases.

outputs[n, y, x, m] = f(b[y, x, m] + sum over (dy, dx, c) of W[y, x, m, dy, dx, c] * inputs[n, y*sy + dy - py,
x*sx + dx - px, c]), inputs outside the image being zero. Without weight sharing a place is a small dense layer
over its window: with U the windows of all examples at that place, the products U W^T, d^T U and d W of
`adamctl.kernels.layers.dense`. A few places are unfolded at a time, so that the windows stay in cache and never take
the memory of all of them.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.layers.activations import BiasActivation
from adamctl.kernels.native import TURN, Call, NativeCall, joined, loop, product
from adamctl.kernels.operation import Array, Buffers, Key, Operation, SlicedOperation, empty_buffers, image_shape
from adamctl.kernels.slicing import OutputSlice, check_slice, halo
from adamctl.model.description import Activation, Padding, Size, pair
from adamctl.model.shapes import same_padding

WINDOWS_SIZE_MAX = 1 << 19  # elements of windows unfolded at a time: 2 MiB; numpy unfolds whole rows of places
Zeros = tuple[tuple[int, int], tuple[int, int]]


class Local2D(Operation):
    """Images [n, height, width, channels], outputs [n, rows, columns, filters].

    Weight [rows, columns, filters, kernel height, kernel width, channels], bias [rows, columns, filters]. `padding`
    "same" adds zeros around so that ceil(size / stride) windows fit, the odd one below and to the right; or it gives
    their numbers: ((above, below), (left, right)).
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        filters: int,
        kernel: Size,
        stride: Size = 1,
        padding: Padding | Zeros = "valid",
        activation: Activation | None = None,
        backend: str | None = None,
    ) -> None:
        height, width, channels = image_shape(input_shape)
        self.kernel, self.stride, self.filters = pair(kernel), pair(stride), filters
        self.pad_rows, self.pad_columns = self._zeros(padding, height, width)
        rows = (height + sum(self.pad_rows) - self.kernel[0]) // self.stride[0] + 1
        columns = (width + sum(self.pad_columns) - self.kernel[1]) // self.stride[1] + 1
        if rows < 1 or columns < 1:
            raise ValueError(f"Local2D: expected a kernel that fits {height}x{width}; found {list(self.kernel)}")
        places = (rows, columns, filters)
        super().__init__(input_shape, places, [(*places, *self.kernel, channels), places])
        self.window = prod(self.kernel) * channels
        self.activation = BiasActivation(activation, backend)
        self._compiled = compiled_if(self.activation.backend, "local")

    def _zeros(self, padding: Padding | Zeros, height: int, width: int) -> Zeros:
        if padding == "valid":
            return (0, 0), (0, 0)
        if padding == "same":
            rows = same_padding(height, self.kernel[0], self.stride[0])
            return rows, same_padding(width, self.kernel[1], self.stride[1])
        return padding

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        buffers.scratch["windows"] = np.zeros((self._at_once(batch_max), batch_max, self.window), dtype)
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
        key: Key,
    ) -> Array:
        self._check_inputs(inputs, buffers)
        batch = len(inputs)
        outputs = buffers.output[:batch]
        by_place, weight = self._by_place(outputs), self._matrices("weight", weights[0])
        padded = self._pad(inputs, buffers)
        for places, windows in self._some(buffers, batch):
            self._unfold(padded, windows, places.start)
            np.matmul(windows, weight[places].transpose(0, 2, 1), out=by_place[places])
        self.activation.forward(outputs.reshape(batch, prod(self.output_shape)), weights[1].reshape(-1))
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
        """With d the error before the activation and U a place's windows: gradient d^T U, folded input error d W."""
        self._check("output error", output_error, self.output_shape)
        batch, size = len(inputs), prod(self.output_shape)
        bias_gradient = None if gradients[1] is None else gradients[1].reshape(size)
        outputs, flat = buffers.output[:batch].reshape(batch, size), output_error.reshape(batch, size)
        self.activation.backward(outputs, flat, bias_gradient)
        if gradients[0] is not None:
            self._weight_gradient(output_error, inputs, self._matrices("gradient", gradients[0]), buffers)
        if not needs_input_error:
            return None
        self._input_error(output_error, self._matrices("weight", weights[0]), buffers)
        return buffers.input_error[:batch]

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        outputs, windows = buffers.output[:batch], self._of_one_place(buffers, batch)
        weight, flat = self._matrices("weight", weights[0]), outputs.reshape(batch, prod(self.output_shape))
        multiply = product(windows[0], weight.transpose(0, 2, 1), self._by_place(outputs))
        return joined(
            loop(len(weight), self._native_unfold(inputs, windows), multiply),
            self.activation.native_forward(flat, weights[1].reshape(-1)),
        )

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
        size, by_place = prod(self.output_shape), self._by_place(output_error)
        bias_gradient = None if gradients[1] is None else gradients[1].reshape(size)
        outputs, flat = buffers.output[:batch].reshape(batch, size), output_error.reshape(batch, size)
        calls, windows = (
            self.activation.native_backward(outputs, flat, bias_gradient),
            self._of_one_place(buffers, batch),
        )
        if gradients[0] is not None:
            gradient = self._matrices("gradient", gradients[0])
            multiply = product(by_place.transpose(0, 2, 1), windows[0], gradient)
            calls = joined(calls, loop(len(gradient), self._native_unfold(inputs, windows), multiply))
        if needs_input_error:
            weight, images = self._matrices("weight", weights[0]), buffers.input_error[:batch]
            fold = NativeCall(self._compiled.fold_places, (windows, images, TURN, *self._geometry()))
            calls = joined(calls, loop(len(weight), product(by_place, weight, windows[0]), [fold]))
        return calls

    def _native_unfold(self, images: Array, windows: Array) -> list[Call]:
        """Returns the unfolding of the place whose turn it is."""
        return [NativeCall(self._compiled.unfold_places, (images, windows, TURN, *self._geometry()))]

    def _of_one_place(self, buffers: Buffers, batch: int) -> Array:
        """Returns scratch [1, batch, window]. Natively one place is unfolded at a time, and stays in cache."""
        flat: Array = buffers.scratch["windows"].reshape(-1)  # type: ignore[assignment]
        return flat[: batch * self.window].reshape(1, batch, self.window)

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts by rows, which read a halo of input rows but share no weight, or by maps, which read all inputs."""
        check_slice(part, self.output_shape, ("rows", "maps"), type(self).__name__)
        own, every = slice(part.start, part.stop), slice(None)
        outputs = (own, every, every) if part.axis == "rows" else (every, every, own)
        inputs, padding, filters = (every, every, every), (self.pad_rows, self.pad_columns), self.filters
        if part.axis == "rows":
            height, _, _ = self.input_shape
            read, zeros = halo(part.start, part.stop, height, self.kernel[0], self.stride[0], self.pad_rows[0])
            inputs, padding = (read, every, every), (zeros, self.pad_columns)
        else:
            filters = part.stop - part.start
        extents = tuple(len(range(*cut.indices(size))) for cut, size in zip(inputs, self.input_shape, strict=True))
        activation, backend = self.activation.activation, self.activation.backend
        operation = Local2D(extents, filters, self.kernel, self.stride, padding, activation, backend)
        return SlicedOperation(operation, inputs, outputs, ((*outputs, every, every, every), outputs))

    def _weight_gradient(self, error: Array, inputs: Array, gradient: Array, buffers: Buffers) -> None:
        by_place, padded = self._by_place(error), self._pad(inputs, buffers)
        for places, windows in self._some(buffers, len(inputs)):
            self._unfold(padded, windows, places.start)
            errors = by_place[places].transpose(0, 2, 1)
            if len(inputs) == 1:  # an outer product, for which numpy's matmul is slow
                np.multiply(errors, windows, out=gradient[places])
            else:
                np.matmul(errors, windows, out=gradient[places])

    def _input_error(self, error: Array, weight: Array, buffers: Buffers) -> None:
        batch = len(error)
        by_place, images = self._by_place(error), buffers.input_error[:batch]
        target = images
        if self._compiled is None:
            target = self._padded(buffers, batch)
            target[...] = 0
        for places, windows in self._some(buffers, batch):
            np.matmul(by_place[places], weight[places], out=windows)
            self._fold(windows, target, places.start)
        if self._compiled is None:
            images[...] = self._inside(target)

    def _at_once(self, batch_max: int) -> int:
        """Returns how many places are unfolded at a time."""
        rows, columns, _ = self.output_shape
        at_once = WINDOWS_SIZE_MAX // max(batch_max * self.window, 1)
        unit = columns if self._compiled is None else 1
        return min(max(at_once // unit, 1) * unit, rows * columns)

    def _some(self, buffers: Buffers, batch: int) -> Iterator[tuple[builtins.slice, Array]]:
        """Yields ranges of places, counted row by row, and scratch [places, batch, window] for their windows."""
        scratch: Array = buffers.scratch["windows"]  # type: ignore[assignment]
        places, flat = prod(self.output_shape[:2]), scratch.reshape(-1)
        for first in range(0, places, len(scratch)):
            count = min(len(scratch), places - first)
            windows = flat[: count * batch * self.window].reshape(count, batch, self.window)
            yield slice(first, first + count), windows

    def _by_place(self, images: Array) -> Array:
        """Returns a view [places, n, filters] of outputs or their errors."""
        rows, columns, filters = self.output_shape
        return images.reshape(len(images), rows * columns, filters).transpose(1, 0, 2)

    def _matrices(self, what: str, weight: Array) -> Array:
        """Returns a view [places, filters, window] of the weight or its gradient."""
        if weight.shape != self.parameters[0] or not weight.flags.c_contiguous:
            raise ValueError(
                f"Local2D: expected {what} of shape {list(self.parameters[0])}, contiguous; found {list(weight.shape)}"
                f"{'' if weight.flags.c_contiguous else ', not contiguous'}"
            )
        rows, columns, filters = self.output_shape
        return weight.reshape(rows * columns, filters, self.window)

    def _unfold(self, images: Array, windows: Array, first: int) -> None:
        """Copies the windows of the places from `first` on into windows [places, n, window]."""
        if self._compiled is not None:
            self._compiled.unfold_places(images, windows, first, *self._geometry())
            return
        for taps, pixels in self._taps(windows, images, first // self.output_shape[1]):
            taps[...] = pixels

    def _fold(self, windows: Array, images: Array, first: int) -> None:
        """The transpose of `_unfold`, added to `images`."""
        if self._compiled is not None:
            self._compiled.fold_places(windows, images, first, *self._geometry())
            return
        for taps, pixels in self._taps(windows, images, first // self.output_shape[1]):
            pixels += taps

    def _geometry(self) -> tuple[int, ...]:
        return (self.output_shape[1], *self.kernel, *self.stride, self.pad_rows[0], self.pad_columns[0])

    def _padded(self, buffers: Buffers, batch: int) -> Array:
        padded: Array = buffers.scratch["padded"][:batch]  # type: ignore[assignment]
        return padded

    def _inside(self, padded: Array) -> Array:
        height, width, _ = self.input_shape
        top, left = self.pad_rows[0], self.pad_columns[0]
        return padded[:, top : top + height, left : left + width]

    def _pad(self, images: Array, buffers: Buffers) -> Array:
        """Returns images padded with zeros; unchanged if the compiled kernel handles the padding."""
        if self._compiled is not None:
            return images
        padded = self._padded(buffers, len(images))
        padded[...] = 0
        self._inside(padded)[...] = images
        return padded

    def _taps(self, windows: Array, padded: Array, row: int) -> Iterator[tuple[Array, Array]]:
        """Yields, for each pixel of a window, the views [rows, columns, n, channels] of windows and of images there."""
        columns, (sy, sx) = self.output_shape[1], self.stride
        rows = len(windows) // columns
        shaped = windows.reshape(rows, columns, windows.shape[1], *self.kernel, self.input_shape[2])
        for dy in range(self.kernel[0]):
            for dx in range(self.kernel[1]):
                top = row * sy + dy
                pixels = padded[:, top : top + (rows - 1) * sy + 1 : sy, dx : dx + (columns - 1) * sx + 1 : sx]
                yield shaped[:, :, :, dy, dx], pixels.transpose(1, 2, 0, 3)

"""A convolution and the max-pooling behind it as one operation: outputs = max over windows of f(conv2d(inputs)).

Without numba it is the two operations one after the other. Compiled, one image at a time goes through both
while it is in cache, the convolution's sums stay in registers, and backward follows only the pixels that
won their window.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.activations import CODES, activate
from adamctl.kernels.backend import compiled
from adamctl.kernels.conv2d import Conv2D
from adamctl.kernels.maxpool2d import MaxPool2D
from adamctl.kernels.operation import Array, Backward, Buffers, Forward, Operation, empty_buffers
from adamctl.kernels.tiling import WIDEST, panels, round_up


class ConvPool(Operation):
    """Images [n, height, width, channels], outputs [n, pooled rows, pooled columns, filters]; compiled only."""

    def __init__(self, convolution: Conv2D, pooling: MaxPool2D) -> None:
        super().__init__(convolution.input_shape, pooling.output_shape, convolution.parameters)
        self.convolution, self.pooling = convolution, pooling
        self.activation = convolution.activation.activation
        self._code = CODES[self.activation]
        self._compiled = compiled("convolution")
        height, width, channels = convolution.input_shape
        self._padded_shape = (height + sum(convolution.pad_rows), width + sum(convolution.pad_columns), channels)
        rows, columns, filters = convolution.output_shape
        places = (*convolution.kernel, *convolution.stride, convolution.pad_rows[0], convolution.pad_columns[0])
        pool = (*pooling.size, *pooling.stride)
        extents = (height, width, channels, filters, *places, *self._padded_shape[:2], rows, columns, *pool)
        self._geometry = np.array(extents, np.int64)
        self._panels = panels(filters, compiled("tiles").WIDE)

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        if dtype != np.float32:
            raise ValueError(f"{type(self).__name__}: expected float32; found {dtype}")
        buffers = empty_buffers(self, batch_max, needs_input_error, np.float32)
        filters, kernel_height, kernel_width, channels = self.parameters[0]
        taps, lanes = self.convolution.window, round_up(filters)
        runs = filters * kernel_height * round_up(kernel_width * channels)
        rows, columns, _ = self.convolution.output_shape
        padded = prod(self._padded_shape)
        sizes = {
            "padded": padded,
            "padded_error": padded,
            "packed": taps * lanes,
            "sums": rows * columns * lanes,
            "best": lanes,
            "runs": runs,
            "gradient_runs": runs,
        }
        for name, size in sizes.items():
            buffers.scratch[name] = np.zeros(size + WIDEST * (name != "best"), np.float32)
        buffers.scratch["where"] = np.zeros(lanes, np.int32)
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
        batch, scratch = len(inputs), buffers.scratch
        outputs = buffers.output[:batch]
        weight = weights[0].reshape(len(weights[1]), self.convolution.window)
        self._compiled.forward(
            inputs, weight, weights[1], outputs, scratch["winner"][:batch], scratch["padded"], scratch["packed"],
            scratch["sums"], scratch["best"], scratch["where"], self._geometry, self._panels, self._code,
        )  # fmt: skip
        if self._code > CODES["relu"]:
            activate(self.activation, outputs)
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
        batch, scratch = len(inputs), buffers.scratch
        filters, taps = len(weights[1]), self.convolution.window
        gradient, bias_gradient = gradients
        if gradient is None or bias_gradient is None:
            raise ValueError(f"{type(self).__name__}: expected arrays for both gradients; found None")
        winner: NDArray[np.int32] = scratch["winner"][:batch].reshape(-1, filters)  # type: ignore[assignment]
        image_errors = buffers.input_error[:batch] if needs_input_error else inputs[:0].copy()
        self._compiled.backward(
            inputs, weights[0].reshape(filters, taps), buffers.output[:batch].reshape(-1, filters),
            output_error.reshape(-1, filters), gradient.reshape(filters, taps), bias_gradient, image_errors,
            winner, int(needs_input_error), scratch["padded"], scratch["padded_error"], scratch["runs"],
            scratch["gradient_runs"], self._geometry, self._code,
        )  # fmt: skip
        return image_errors if needs_input_error else None

    def bind_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, generator: np.random.Generator
    ) -> Forward:
        if self._code > CODES["relu"]:
            return super().bind_forward(batch, weights, buffers, generator)
        scratch, bias, outputs, code = buffers.scratch, weights[1], buffers.output[:batch], self._code
        weight, winner = weights[0].reshape(len(bias), self.convolution.window), scratch["winner"][:batch]
        padded, packed, sums, best, where = (scratch[name] for name in ("padded", "packed", "sums", "best", "where"))
        geometry, compiled_forward = self._geometry, self._compiled.forward

        def forward(inputs: Array) -> Array:
            compiled_forward(
                inputs, weight, bias, outputs, winner, padded, packed, sums, best, where, geometry, self._panels,
                code,
            )  # fmt: skip
            return outputs

        return forward

    def bind_backward(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool,
    ) -> Backward:
        gradient, bias_gradient = gradients
        if gradient is None or bias_gradient is None:
            raise ValueError(f"{type(self).__name__}: expected arrays for both gradients; found None")
        shape, scratch, code = (len(bias_gradient), self.convolution.window), buffers.scratch, self._code
        errors_shape = (-1, len(bias_gradient))
        weight, flat_gradient = weights[0].reshape(shape), gradient.reshape(shape)
        outputs, winner = buffers.output[:batch].reshape(errors_shape), scratch["winner"][:batch].reshape(errors_shape)
        names = ("padded", "padded_error", "runs", "gradient_runs")
        padded, padded_error, runs, gradient_runs = (scratch[name] for name in names)
        image_errors = (
            buffers.input_error[:batch] if needs_input_error else np.zeros((0, *self.input_shape), np.float32)
        )
        needed, geometry, compiled_backward = int(needs_input_error), self._geometry, self._compiled.backward

        def backward(output_error: Array, inputs: Array) -> Array | None:
            compiled_backward(
                inputs, weight, outputs, output_error.reshape(errors_shape), flat_gradient, bias_gradient,
                image_errors, winner, needed, padded, padded_error, runs, gradient_runs, geometry, code,
            )  # fmt: skip
            return image_errors if needed else None

        return backward

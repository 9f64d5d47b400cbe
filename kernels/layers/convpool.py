"""A convolution and the max-pooling after it as one operation: outputs = max over windows of f(conv2d(inputs)).

Without numba, the two operations run one after the other. Compiled, one image at a time goes through both while it is
in cache, the convolution's sums stay in registers, and backward follows only the pixels that won their window and that
relu let through: a small part of the products of a convolution's backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from adamctl.kernels.backend import compiled, panels_with_tiles
from adamctl.kernels.layers.activations import CODES
from adamctl.kernels.layers.conv2d import Conv2D
from adamctl.kernels.layers.maxpool2d import MaxPool2D
from adamctl.kernels.native import Call, NativeCall
from adamctl.kernels.operation import Array, Backward, Buffers, Forward, Key, Operation, SlicedOperation, empty_buffers
from adamctl.kernels.slicing import OutputSlice, check_slice, halo
from adamctl.kernels.tiling import WIDEST, round_up


class ConvPool(Operation):
    """Images [n, height, width, channels], outputs [n, pooled rows, pooled columns, filters]; compiled only."""

    def __init__(self, convolution: Conv2D, pooling: MaxPool2D) -> None:
        super().__init__(convolution.input_shape, pooling.output_shape, convolution.parameters)
        self.convolution, self.pooling = convolution, pooling
        self._code = CODES[convolution.activation.activation]
        self._compiled = compiled("convolution")
        height, width, channels = convolution.input_shape
        self._padded_shape = (height + sum(convolution.pad_rows), width + sum(convolution.pad_columns), channels)
        rows, columns, filters = convolution.output_shape
        places = (*convolution.kernel, *convolution.stride, convolution.pad_rows[0], convolution.pad_columns[0])
        pool = (*pooling.size, *pooling.stride)
        extents = (height, width, channels, filters, *places, *self._padded_shape[:2], rows, columns, *pool)
        self._geometry = np.array(extents, np.int64)
        self._map_panels = panels_with_tiles(filters, "sums")
        self._run_panels = panels_with_tiles(convolution.kernel[1] * channels, "listed")
        top = np.arange(rows, dtype=np.int32)[:, None] * (convolution.stride[0] * self._padded_shape[1])
        left = np.arange(columns, dtype=np.int32) * convolution.stride[1]
        self._window = ((top + left) * channels).astype(np.int32).ravel()

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
            "bias": filters,
            "runs": runs,
            "gradient_runs": runs,
        }
        for name, size in sizes.items():
            buffers.scratch[name] = np.zeros(size + WIDEST, np.float32)
        listed = prod(self.output_shape)
        buffers.scratch["factor"] = np.zeros(listed, np.float32)
        for name, size in {"place": listed, "length": filters, "end": rows * columns}.items():
            buffers.scratch[name] = np.zeros(size, np.int32)
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
        self.convolution.check_room(len(inputs), weights, buffers)
        return self.bind_forward(len(inputs), weights, buffers, key)(inputs)

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
        return self.bind_backward(len(inputs), weights, gradients, buffers, needs_input_error)(output_error, inputs)

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts into `maps` or `rows`; rows of the convolution that two windows share are computed by both parts."""
        check_slice(part, self.output_shape, ("maps", "rows"), "ConvPool")
        pooling, every, made = self.pooling, slice(None), slice(part.start, part.stop)
        outputs = (every, every, made)
        if part.axis == "rows":
            rows = self.convolution.output_shape[0]
            read, _ = halo(part.start, part.stop, rows, pooling.size[0], pooling.stride[0])
            part, outputs = OutputSlice("rows", read.start, read.stop), (made, every, every)
        sliced = self.convolution.slice(part)
        convolution = sliced.operation
        assert isinstance(convolution, Conv2D)
        pooling = MaxPool2D(convolution.output_shape, pooling.size, pooling.stride, pooling.backend)
        return SlicedOperation(ConvPool(convolution, pooling), sliced.inputs, outputs, sliced.parameters)

    def bind_forward(self, batch: int, weights: Sequence[Array], buffers: Buffers, key: Key) -> Forward:
        run, arguments = self._compiled.forward, self._forward_arguments(batch, weights, buffers)
        outputs = buffers.output[:batch]

        def forward(inputs: Array) -> Array:
            run(inputs, *arguments)
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
        before, after = self._backward_arguments(batch, weights, gradients, buffers, needs_input_error)
        run, errors_shape = self._compiled.backward, (-1, self.convolution.filters)
        image_errors = buffers.input_error[:batch] if needs_input_error else None

        def backward(output_error: Array, inputs: Array) -> Array | None:
            run(inputs, *before, output_error.reshape(errors_shape), *after)
            return image_errors

        return backward

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        return [NativeCall(self._compiled.forward, (inputs, *self._forward_arguments(batch, weights, buffers)))]

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
        before, after = self._backward_arguments(batch, weights, gradients, buffers, needs_input_error)
        error = output_error.reshape(-1, self.convolution.filters)
        return [NativeCall(self._compiled.backward, (inputs, *before, error, *after))]

    def _forward_arguments(self, batch: int, weights: Sequence[Array], buffers: Buffers) -> tuple[Any, ...]:
        """Returns the compiled forward's arguments after the inputs."""
        scratch, bias, outputs = buffers.scratch, weights[1], buffers.output[:batch]
        weight, winner = weights[0].reshape(len(bias), self.convolution.window), scratch["winner"][:batch]
        arrays = tuple(scratch[name] for name in ("padded", "packed", "sums", "bias"))
        return weight, bias, outputs, winner, *arrays, self._geometry, self._map_panels, self._code

    def _backward_arguments(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the compiled backward's arguments between inputs and output error, and after the output error."""
        gradient, bias_gradient = gradients
        if gradient is None or bias_gradient is None:
            raise ValueError(f"{type(self).__name__}: expected arrays for both gradients; found None")
        scratch, errors_shape = buffers.scratch, (-1, len(bias_gradient))
        shape = (len(bias_gradient), self.convolution.window)
        outputs, winner = buffers.output[:batch].reshape(errors_shape), scratch["winner"][:batch].reshape(errors_shape)
        names = ("padded", "padded_error", "runs", "gradient_runs", "place", "factor", "length", "end")
        image_errors = (
            buffers.input_error[:batch] if needs_input_error else np.zeros((0, *self.input_shape), np.float32)
        )
        after = (
            gradient.reshape(shape), bias_gradient, image_errors, winner, int(needs_input_error),
            *(scratch[name] for name in names), self._window, self._geometry, self._run_panels, self._code,
        )  # fmt: skip
        return (weights[0].reshape(shape), outputs), after

"""The compiled convolution's plan: geometry, panels and scratch memory of `adamctl.kernels.compiled.direct`.

Besides outputs and input error, a thread needs one padded image, one padded error and one packed copy of the weights,
none of which grows with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import compiled, panels_with_tiles
from adamctl.kernels.native import NativeCall
from adamctl.kernels.operation import Array, Buffers
from adamctl.kernels.tiling import PIXELS_MAX, WIDEST, round_up

BLOCK_PIXELS = 80  # in one or more rows of errors: with the image panel under them they fill a first-level cache

_EMPTY1, _EMPTY2 = np.zeros(0, np.float32), np.zeros((0, 0), np.float32)


@dataclass(frozen=True)
class Extents:
    """A convolution's sizes: image, kernel, stride, zeros (before, after); channels and filters are per group."""

    height: int
    width: int
    channels: int
    filters: int
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad_rows: tuple[int, int]
    pad_columns: tuple[int, int]
    rows: int
    columns: int


class DirectConvolution:
    """Calls the compiled convolution; holds no state of a step."""

    def __init__(self, extents: Extents) -> None:
        self.extents = e = extents
        self._compiled = compiled("direct")
        self._block_rows = max(1, BLOCK_PIXELS // max(e.columns, 1))
        self._lines = e.height + sum(e.pad_rows), e.width + sum(e.pad_columns)
        border = tuple(-(-e.kernel[axis] // e.stride[axis]) - 1 for axis in (0, 1))
        reach = (e.height - 1 + e.pad_rows[0]) // e.stride[0], (e.width - 1 + e.pad_columns[0]) // e.stride[1]
        lines = border[0] + max(reach[0] + 1, e.rows), border[1] + max(reach[1] + 1, e.columns)
        self._with_error = self._geometry(lines, border)
        self._without_error = self._geometry((self._block_rows, e.columns), (0, 0))

    # Created on first use: a convolution fused with pooling does not need them.

    @cached_property
    def _filter_panels(self) -> NDArray[np.int64]:
        return panels_with_tiles(self.extents.filters, "sums")

    @cached_property
    def _tap_panels(self) -> NDArray[np.int64]:
        return panels_with_tiles(self.extents.kernel[1] * self.extents.channels, "products")

    @cached_property
    def _channel_panels(self) -> NDArray[np.int64]:
        return panels_with_tiles(self.extents.channels, "sums")

    def _geometry(self, error_lines: tuple[int, int], border: tuple[int, ...]) -> NDArray[np.int64]:
        e = self.extents
        fields = (
            e.groups, e.height, e.width, e.channels, e.filters, *e.kernel, *e.stride, e.pad_rows[0], e.pad_columns[0],
            e.rows, e.columns, self._lines[1], *error_lines, *border, self._block_rows,
        )  # fmt: skip
        return np.array(fields, np.int64)

    def allocate(self, buffers: Buffers, needs_input_error: bool) -> None:
        """Adds the scratch arrays to a thread's buffers."""
        e = self.extents
        taps, step = prod(e.kernel), round_up(e.kernel[1] * e.channels)
        geometry = self._with_error if needs_input_error else self._without_error
        sizes = {
            "padded": prod(self._lines) * e.channels,
            "errors": int(geometry[14] * geometry[15]) * e.filters,
            "packed": taps * max(e.channels * round_up(e.filters), e.filters * round_up(e.channels)),
            "sums": max(e.columns, e.width, PIXELS_MAX) * WIDEST,
            "products": (e.filters + PIXELS_MAX) * e.kernel[0] * step,
            "bias": e.filters * e.groups,
        }
        for name, size in sizes.items():
            buffers.scratch[name] = np.zeros(size + WIDEST, np.float32)
        buffers.scratch["geometry"] = geometry

    def forward(
        self, inputs: Array, weight: Array, bias: Array, outputs: Array, buffers: Buffers, code: int
    ) -> NativeCall:
        """Returns the call that writes the outputs, with bias and activation applied."""
        scratch = buffers.scratch
        arguments = (
            inputs, weight.reshape(len(weight), -1), bias, outputs, scratch["padded"], scratch["packed"],
            scratch["sums"], scratch["bias"], scratch["geometry"], self._filter_panels, code,
        )  # fmt: skip
        return NativeCall(self._compiled.forward, arguments)

    def backward(
        self, inputs: Array, weight: Array, outputs: Array, errors: Array, gradient: Array | None,
        bias_gradient: Array | None, image_errors: Array | None, buffers: Buffers, code: int,
    ) -> NativeCall:  # fmt: skip
        """Returns the call that writes gradients and the images' errors, except those that are None."""
        scratch = buffers.scratch
        own_bias: Array = scratch["bias"][: len(weight)]  # type: ignore[assignment]
        arguments = (
            inputs, weight.reshape(len(weight), -1), outputs, errors,
            _EMPTY2 if gradient is None else gradient.reshape(len(weight), -1),
            own_bias if bias_gradient is None else bias_gradient,
            inputs[:0].copy() if image_errors is None else image_errors,
            scratch["padded"], scratch["errors"], scratch["packed"], scratch["sums"], scratch["products"],
            scratch["geometry"], self._tap_panels, self._channel_panels, code,
            int(gradient is not None), int(image_errors is not None),
        )  # fmt: skip
        return NativeCall(self._compiled.backward, arguments)

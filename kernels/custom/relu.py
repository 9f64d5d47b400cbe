"""A rectifier by itself, written as a user writes a layer with native calls: for after pooling or whitening.

The keys `activation = "relu"` of other layers are part of their own kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adamctl.kernels.custom_kernel import call, kernel
from adamctl.kernels.native import NativeCall
from adamctl.model.custom.interface import Layer, Part, Same

Arrays = Mapping[str, Any]


@kernel("void(float32[::1], float32[::1])")
def rectify(inputs: Any, out: Any) -> None:
    """out = max(inputs, 0); NaN stays NaN."""
    for place in range(inputs.size):
        out[place] = np.float32(0) if inputs[place] <= 0 else inputs[place]


@kernel("void(float32[::1], float32[::1], float32[::1])")
def rectify_error(error: Any, inputs: Any, out: Any) -> None:
    """out = error where inputs > 0, 0 elsewhere."""
    for place in range(inputs.size):
        out[place] = error[place] if inputs[place] > 0 else np.float32(0)


class Relu(Layer, name="relu"):
    """Inputs and outputs of any shape, [n, ...]."""

    def output_shape(self, input: tuple[int, ...]) -> tuple[int, ...]:
        return input

    def connectivity(self) -> Same:
        return Same()

    def upward(self, part: Part, inputs: Any, parameters: Arrays, state: Arrays, out: Any) -> None:
        np.maximum(inputs, 0, out=out)

    def downward(
        self, part: Part, error: Any, inputs: Any, parameters: Arrays, gradients: Arrays, state: Arrays, out: Any
    ) -> None:
        if out is not None:
            np.multiply(error, inputs > 0, out=out)

    def native_upward(self, part: Part, inputs: Any, parameters: Arrays, state: Arrays, out: Any) -> list[NativeCall]:
        return [call(rectify, inputs.reshape(-1), out.reshape(-1))]

    def native_downward(
        self, part: Part, error: Any, inputs: Any, parameters: Arrays, gradients: Arrays, state: Arrays, out: Any
    ) -> list[NativeCall]:
        return [] if out is None else [call(rectify_error, error.reshape(-1), inputs.reshape(-1), out.reshape(-1))]

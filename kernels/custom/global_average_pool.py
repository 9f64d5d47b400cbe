"""Global average pooling, written as a user writes a layer: the mean of each map (Lin et al. 2014, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adamctl.model.custom.interface import Full, Layer, Part

Arrays = Mapping[str, Any]


class GlobalAveragePool(Layer, name="global_average_pool"):
    """Inputs [n, height, width, maps], outputs [n, maps]; cut by units, a part reads all maps and uses its own."""

    def output_shape(self, input: tuple[int, ...]) -> tuple[int, ...]:
        if len(input) != 3:
            raise ValueError(f"expected an image [height, width, maps]; found {list(input)}")
        return (input[2],)

    def connectivity(self) -> Full:
        return Full()

    def upward(self, part: Part, inputs: Any, parameters: Arrays, state: Arrays, out: Any) -> None:
        np.mean(inputs[..., slice(*part.makes[0])], axis=(1, 2), out=out)

    def downward(
        self, part: Part, error: Any, inputs: Any, parameters: Arrays, gradients: Arrays, state: Arrays, out: Any
    ) -> None:
        if out is None:
            return
        error /= part.input[0] * part.input[1]
        out[...] = 0
        out[..., slice(*part.makes[0])] = error[:, None, None, :]

"""Whitening over a window, written as a user writes a layer: each map is centred and scaled by its neighbourhood.

With W the window of `size` x `size` pixels around a pixel, of which n lie inside the image:

    m = sum over W of inputs / n        d = sqrt(sum over W of (inputs - m)^2 / n + epsilon)
    outputs = gain * (inputs - m) / d
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adamctl.model.custom.interface import Layer, Parameter, Part, Window

Arrays = Mapping[str, Any]


class Whiten(Layer, name="whiten"):
    """Inputs and outputs [n, height, width, maps]; `size` is odd, and gain [maps] is learned."""

    size: int = 5
    epsilon: float = 0.01

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0 or self.epsilon <= 0:
            raise ValueError(f"expected an odd size and an epsilon above 0; found {self.size} and {self.epsilon}")

    def output_shape(self, input: tuple[int, ...]) -> tuple[int, ...]:
        return input

    def connectivity(self) -> Window:
        return Window(self.size, padding="same")

    def parameters(self, input: tuple[int, ...]) -> dict[str, Parameter]:
        return {"gain": Parameter((input[2],), init="ones", shared=True)}

    def state(self, part: Part) -> dict[str, tuple[int, ...]]:
        shape = part.output_shape
        return {"centred": shape, "deviation": shape, "of_mean": shape, "moved": shape}

    def upward(self, part: Part, inputs: Any, parameters: Arrays, state: Arrays, out: Any) -> None:
        counts, mean, deviation, moved = part.counts[..., None], out, state["deviation"], state["moved"]
        mean[...] = 0
        for window, _ in self._windows(part, inputs):
            mean += window
        mean /= counts
        deviation[...] = 0
        for window, inside in self._windows(part, inputs):
            np.subtract(window, mean, out=moved)
            moved *= moved
            moved *= inside
            deviation += moved
        deviation /= counts
        np.sqrt(np.add(deviation, self.epsilon, out=deviation), out=deviation)
        centred = np.subtract(self._centre(part, inputs), mean, out=state["centred"])
        centred /= deviation
        np.multiply(centred, parameters["gain"], out=out)

    def downward(
        self, part: Part, error: Any, inputs: Any, parameters: Arrays, gradients: Arrays, state: Arrays, out: Any
    ) -> None:
        counts, centred, deviation, moved = part.counts[..., None], state["centred"], state["deviation"], state["moved"]
        np.multiply(error, centred, out=moved)
        np.sum(moved, axis=(0, 1, 2), out=gradients["gain"])
        if out is None:
            return
        error *= parameters["gain"]
        error /= deviation
        of_mean = np.divide(error, counts, out=state["of_mean"])
        mean = np.multiply(centred, deviation, out=moved)
        np.subtract(self._centre(part, inputs), mean, out=mean)
        centred *= error
        centred /= deviation
        centred /= counts
        out[...] = 0
        for (window, inside), (target, _) in zip(self._windows(part, inputs), self._windows(part, out), strict=True):
            target -= (of_mean + centred * (window - mean)) * inside
        target = self._centre(part, out)
        target += error

    def _windows(self, part: Part, image: Any) -> Any:
        """Yields, for each place in a window, its pixels [n, rows, columns, maps], and which are inside the image."""
        rows, columns, _ = part.output_shape
        for place in np.ndindex(self.size, self.size):
            view = (slice(place[0], place[0] + rows), slice(place[1], place[1] + columns))
            yield image[(slice(None), *view)], part.inside[view][..., None]

    def _centre(self, part: Part, image: Any) -> Any:
        rows, columns, _ = part.output_shape
        half = self.size // 2
        return image[:, half : half + rows, half : half + columns]

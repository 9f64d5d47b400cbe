"""Moves images by whole pixels in place, so that each pass trains on another variant of them (Adam 3.1)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from adamctl.roles.data.core import Shifts


def translate(images: NDArray[Any], shifts: Shifts, border: float) -> None:
    """Moves each image by its shift and fills the uncovered pixels.

    Args:
        images: [n, height, width, channels], of any type, C-contiguous; changed in place.
        shifts: [n, 2], pixels down and to the right, each less than the images' height and width.
        border: the value of uncovered pixels.
    """
    examples, _, width, channels = images.shape
    flat = images.reshape(examples, -1)
    for image, values, (down, right) in zip(images, flat, shifts.tolist(), strict=True):
        # One move of contiguous values: what crosses a row's end lands where the border will be written.
        distance = (down * width + right) * channels
        if distance > 0:
            values[distance:] = values[:-distance]
        elif distance < 0:
            values[:distance] = values[-distance:]
        if down > 0:
            image[:down] = border
        elif down < 0:
            image[down:] = border
        if right > 0:
            image[:, :right] = border
        elif right < 0:
            image[:, right:] = border

"""Images under an affine map and an elastic displacement, pixel by pixel, to the bit as numpy computes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN4, OUT4, f32, f64, i64, inline, kernel, readable, writable


def _exact(function: Any) -> Any:
    return inline(function, relaxed=False)


@_exact
def pixel(image: Any, y: Any, x: Any, channel: Any, border: Any) -> Any:
    """The value of a pixel, which may lie outside."""
    inside = 0 <= y < image.shape[0] and 0 <= x < image.shape[1]
    return image[y, x, channel] if inside else border


@_exact
def between(a: Any, b: Any, c: Any, d: Any, down: Any, right: Any) -> Any:
    """The value between four pixels, a and b above c and d."""
    top, bottom = a + right * (b - a), c + right * (d - c)
    return top + down * (bottom - top)


FIRSTS, WEIGHTS, SCRATCH = readable(i64, 2), readable(f64, 3), writable(f64, 2)


@kernel(
    (IN4, readable(f64, 3), readable(f64, 4), FIRSTS, WEIGHTS, FIRSTS, WEIGHTS, SCRATCH, SCRATCH, f32, OUT4),
    relaxed=False,
)
def warp(
    images: Any, matrices: Any, nodes: Any, row_firsts: Any, row_weights: Any, column_firsts: Any, column_weights: Any,
    line: Any, at: Any, border: Any, out: Any,
) -> None:  # fmt: skip
    """As `adamctl.kernels.numeric.warp.warp`; `line` [2, nodes across] and `at` [2, width] are scratch."""
    examples, height, width, channels = images.shape
    rows, columns, down_line, right_line = at[0], at[1], line[0], line[1]
    across, pixels = nodes.shape[3], images.reshape(images.size)
    for number in range(examples):
        image, matrix = images[number], matrices[number]
        for y in range(height):
            for axis in range(2):
                own, place = matrix[axis], at[axis]
                for x in range(width):
                    place[x] = own[0] * y + own[1] * x + own[2]
                if across == 0:
                    continue
                first, weights, mixed = row_firsts[number, y], row_weights[number, y], line[axis]
                four = nodes[number, axis]
                for i in range(across):
                    mixed[i] = (
                        weights[0] * four[first, i] + weights[1] * four[first + 1, i]
                        + weights[2] * four[first + 2, i] + weights[3] * four[first + 3, i]
                    )  # fmt: skip
            if across > 0:
                for x in range(width):
                    i, weights = column_firsts[number, x], column_weights[number, x]
                    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
                    rows[x] += w0 * down_line[i] + w1 * down_line[i + 1] + w2 * down_line[i + 2] + w3 * down_line[i + 3]
                    columns[x] += (
                        w0 * right_line[i] + w1 * right_line[i + 1] + w2 * right_line[i + 2] + w3 * right_line[i + 3]
                    )
            for x in range(width):
                row, column, target = rows[x], columns[x], out[number, y, x]
                if not (-1 < row < height and -1 < column < width):
                    target[:] = border
                    continue
                top, left = math.floor(row), math.floor(column)
                down, right = np.float32(row - top), np.float32(column - left)
                if 0 <= top < height - 1 and 0 <= left < width - 1:
                    upper = ((number * height + top) * width + left) * channels
                    lower = upper + width * channels
                    for c in range(channels):
                        target[c] = between(
                            pixels[upper + c], pixels[upper + channels + c],
                            pixels[lower + c], pixels[lower + channels + c], down, right,
                        )  # fmt: skip
                else:
                    for c in range(channels):
                        target[c] = between(
                            pixel(image, top, left, c, border), pixel(image, top, left + 1, c, border),
                            pixel(image, top + 1, left, c, border), pixel(image, top + 1, left + 1, c, border),
                            down, right,
                        )  # fmt: skip

"""A convolution with bias, activation and max-pooling in one pass per image, sums held in registers.

Everything of one image stays in a core's cache: the padded image, its convolution and its error are 1-D
scratch arrays reused for every image. Maps are padded to whole vectors of eight, and so is each run of kw *
channels numbers that a window takes from one image row. `geometry` is [height, width, channels, filters,
kh, kw, sy, sx, top, left, padded height, padded width, rows, columns, pool kh, pool kw, pool sy, pool sx]
as int64; rows and columns are those of the convolution.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.direct import GEOMETRY, PANELS, best_count, pack_forward, place_image, row_sums
from adamctl.kernels.compiled.elementwise import RELU, scale
from adamctl.kernels.compiled.jit import IN1, IN2, IN4, OUT1, OUT2, OUT4, i32, i64, inline, kernel, readable, writable
from adamctl.kernels.compiled.vectors import LANES, add_scaled, window_largest


@inline
def convolve(padded: Any, packed: Any, sums: Any, geometry: Any, panels: Any, step: int) -> None:
    """sums[(y * columns + x) * step + m]: the convolution of one padded image, no bias."""
    channels, kh, kw, sy, sx = geometry[2], geometry[4], geometry[5], geometry[6], geometry[7]
    line, rows, columns = geometry[11] * channels, geometry[12], geometry[13]
    for panel in range(len(panels)):
        start, vectors, lanes = panels[panel, 0], panels[panel, 1], panels[panel, 2]
        pixels = best_count(columns, vectors, min(columns, panels[panel, 3]))
        for y in range(rows):
            row_sums(
                padded, y * sy * line, line, sx * channels, packed, start * kh * kw * channels, kh, kw * channels,
                sums, y * columns * step + start, step, columns, vectors, lanes, pixels,
            )  # fmt: skip


@inline
def pool(
    sums: Any, bias: Any, outputs: Any, winner: Any, best: Any, where: Any, geometry: Any, lanes: int, code: int
) -> None:
    """outputs[y, x, m] = f(largest + bias) over one image; winner: where its window starts in the padded image."""
    channels, filters, sy, sx = geometry[2], geometry[3], geometry[6], geometry[7]
    line, columns = geometry[11] * channels, geometry[13]
    zero = np.float32(0)
    for y in range(outputs.shape[0]):
        for x in range(outputs.shape[1]):
            top, left = y * geometry[16], x * geometry[17]
            for m in range(0, lanes, LANES):
                window_largest(
                    sums, (top * columns + left) * lanes + m, columns * lanes, lanes, geometry[14], geometry[15],
                    top * sy * line + left * sx * channels, sy * line, sx * channels, best, where, m,
                )  # fmt: skip
            for m in range(filters):
                value = best[m] + bias[m]
                outputs[y, x, m] = zero if code == RELU and value < zero else value
                winner[y, x, m] = where[m]


@kernel((IN4, IN2, IN1, OUT4, writable(i32, 4), OUT1, OUT1, OUT1, OUT1, writable(i32, 1), GEOMETRY, PANELS, i64))
def forward(
    images: Any, weight: Any, bias: Any, outputs: Any, winner: Any,
    padded: Any, packed: Any, sums: Any, best: Any, where: Any, geometry: Any, panels: Any, code: int,
) -> None:  # fmt: skip
    """outputs [n, pooled rows, pooled columns, filters] of images; weight [filters, taps]; relu if that is the code.

    Bias and activation come after the maximum: both grow with their argument, so the result is the same.
    """
    lanes = len(best)
    pack_forward(weight, packed, 0, len(weight), panels)
    for image in range(len(images)):
        place_image(images[image], padded, 0, geometry[2], geometry[8], geometry[9], geometry[11])
        convolve(padded, packed, sums, geometry, panels, lanes)
        pool(sums, bias, outputs[image], winner[image], best, where, geometry, lanes, code)


@inline
def scale_and_sum(outputs: Any, errors: Any, code: int, bias_gradient: Any) -> None:
    scale(outputs, errors, code)
    bias_gradient[:] = 0
    for row in range(len(errors)):
        for m in range(errors.shape[1]):
            bias_gradient[m] += errors[row, m]


@inline
def pad_runs(weight: Any, padded_weight: Any, kh: int, run: int, step: int) -> None:
    """padded_weight[(m * kh + dy) * step + t] = weight[m, dy * run + t]; beyond the run it is zero and stays so."""
    for m in range(len(weight)):
        for dy in range(kh):
            for t in range(run):
                padded_weight[(m * kh + dy) * step + t] = weight[m, dy * run + t]


@inline
def take_runs(padded_weight: Any, weight: Any, kh: int, run: int, step: int) -> None:
    for m in range(len(weight)):
        for dy in range(kh):
            for t in range(run):
                weight[m, dy * run + t] = padded_weight[(m * kh + dy) * step + t]


@inline
def take_image(padded: Any, image: Any, geometry: Any) -> None:
    """Copies the middle of the padded error into one image's error."""
    width, channels, top, left = geometry[1], geometry[2], geometry[8], geometry[9]
    line = geometry[11] * channels
    for y in range(geometry[0]):
        start = (y + top) * line + left * channels
        row, inside = image[y].reshape(width * channels), padded[start : start + width * channels]
        for i in range(len(row)):
            row[i] = inside[i]


@kernel((IN4, IN2, IN2, OUT2, OUT2, OUT1, OUT4, readable(i32, 2), i64, OUT1, OUT1, OUT1, OUT1, GEOMETRY, i64))
def backward(
    images: Any, weight: Any, outputs: Any, errors: Any, gradient: Any, bias_gradient: Any, image_errors: Any,
    winner: Any, needs_error: int,
    padded: Any, padded_error: Any, padded_weight: Any, padded_gradient: Any, geometry: Any, code: int,
) -> None:  # fmt: skip
    """Gradients and input error; outputs, errors, winner are [n * pooled pixels, filters], errors changed in place.

    Only the pixel that won a window has an error, so each error is added once: times the window under it to the
    weight's gradient, times the weight to the window's error. That is a quarter of a full product for 2x2 windows,
    and where relu put out zero there is nothing to add.
    """
    kh, run, filters = geometry[4], geometry[5] * geometry[2], geometry[3]
    line, vectors = geometry[11] * geometry[2], (run + LANES - 1) // LANES
    step = vectors * LANES
    scale_and_sum(outputs, errors, code, bias_gradient)
    padded_gradient[:] = 0
    if needs_error:
        pad_runs(weight, padded_weight, kh, run, step)
    pixels = len(errors) // max(len(images), 1)
    for image in range(len(images)):
        place_image(images[image], padded, 0, geometry[2], geometry[8], geometry[9], geometry[11])
        if needs_error:
            padded_error[:] = 0
        for pixel in range(image * pixels, (image + 1) * pixels):
            for m in range(filters):
                error = errors[pixel, m]
                if error == 0:
                    continue
                at, own = winner[pixel, m], m * kh * step
                add_scaled(padded_gradient, own, step, padded, at, line, error, kh, vectors)
                if needs_error:
                    add_scaled(padded_error, at, line, padded_weight, own, step, error, kh, vectors)
        if needs_error:
            take_image(padded_error, image_errors[image], geometry)
    take_runs(padded_gradient, gradient, kh, run, step)

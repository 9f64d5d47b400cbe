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

from adamctl.kernels.compiled.curves import RELU, apply_curve
from adamctl.kernels.compiled.direct import GEOMETRY, PANELS, best_count, pack_forward, place_image, row_sums
from adamctl.kernels.compiled.elementwise import scale
from adamctl.kernels.compiled.jit import IN1, IN2, IN4, OUT1, OUT2, OUT4, i32, i64, inline, kernel, readable, writable
from adamctl.kernels.compiled.tiles import list_tile
from adamctl.kernels.compiled.vectors import LANES, pool_window


@inline
def convolve(padded: Any, packed: Any, sums: Any, geometry: Any, panels: Any, step: int) -> None:
    """sums[(y * columns + x) * step + m]: the convolution of one padded image, no bias."""
    channels, kh, kw, sy, sx = geometry[2], geometry[4], geometry[5], geometry[6], geometry[7]
    line, rows, columns = geometry[11] * channels, geometry[12], geometry[13]
    for panel in range(len(panels)):
        start, vectors = panels[panel, 0], panels[panel, 1]
        pixels = best_count(columns, vectors, min(columns, panels[panel, 3]))
        for y in range(rows):
            row_sums(
                padded, y * sy * line, line, sx * channels, packed, start * kh * kw * channels, kh, kw * channels,
                sums, y * columns * step + start, step, columns, pixels, panels[panel, 4],
            )  # fmt: skip


@inline
def pool(
    sums: Any, bias: Any, outputs: Any, winner: Any, at: int, rows: int, pooled: int, geometry: Any, step: int,
    code: int,
) -> None:  # fmt: skip
    """From outputs[at] on, outputs[(y * pooled + x) * filters + m] = f(largest + bias) over one image.

    winner: the convolution's pixel, y * columns + x. The last vector of maps overlaps the one before.
    """
    filters, columns = geometry[3], geometry[13]
    count = min(filters, LANES)
    for y in range(rows):
        for x in range(pooled):
            first = y * geometry[16] * columns + x * geometry[17]
            for start in range(0, filters, LANES):
                m = min(start, filters - count)
                pool_window(
                    sums, first * step + m, columns * step, step, geometry[14], geometry[15], first, columns,
                    bias, m, code == RELU, outputs, winner, at + (y * pooled + x) * filters + m, count,
                )  # fmt: skip


@kernel((IN4, IN2, IN1, OUT4, writable(i32, 4), OUT1, OUT1, OUT1, OUT1, GEOMETRY, PANELS, i64))
def forward(
    images: Any, weight: Any, bias: Any, outputs: Any, winner: Any,
    padded: Any, packed: Any, sums: Any, padded_bias: Any, geometry: Any, panels: Any, code: int,
) -> None:  # fmt: skip
    """outputs [n, pooled rows, pooled columns, filters] of images; weight [filters, taps]; activation by code.

    Bias and activation come after the maximum: both grow with their argument, so the result is the same.
    """
    filters, step = len(weight), panels[-1, 0] + panels[-1, 1] * panels[-1, 2]
    for m in range(filters):
        padded_bias[m] = bias[m]
    pack_forward(weight, packed, 0, filters, panels)
    flat, flat_winner = outputs.reshape(outputs.size), winner.reshape(winner.size)
    rows, pooled = outputs.shape[1], outputs.shape[2]
    for image in range(len(images)):
        place_image(images[image], padded, 0, geometry[2], geometry[8], geometry[9], geometry[11])
        convolve(padded, packed, sums, geometry, panels, step)
        at = image * rows * pooled * filters
        pool(sums, padded_bias, flat, flat_winner, at, rows, pooled, geometry, step, code)
        apply_curve(flat, at, rows * pooled * filters, code)


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


@inline
def list_by_map(errors: Any, winner: Any, window: Any, place: Any, factor: Any, length: Any) -> None:
    """Lists, for each map, the errors that are not zero and where the windows under them start."""
    pixels, filters = errors.shape
    for m in range(filters):
        length[m] = m * pixels
    for pixel in range(pixels):
        for m in range(filters):
            error, at = errors[pixel, m], length[m]
            place[at] = window[winner[pixel, m]]
            factor[at] = error
            length[m] = at + (error != 0)


@inline
def list_by_pixel(errors: Any, winner: Any, step: int, place: Any, factor: Any, end: Any) -> None:
    """Lists, for each pixel of the convolution, the errors that are not zero and where their maps' weights start.

    A counting sort: afterwards pixel p's entries are end[p - 1] to end[p], the first from 0.
    """
    pixels, filters = errors.shape
    end[:] = 0
    for pixel in range(pixels):
        for m in range(filters):
            end[winner[pixel, m]] += errors[pixel, m] != 0
    total = np.int32(0)
    for p in range(len(end)):
        total, end[p] = total + end[p], total
    for pixel in range(pixels):
        for m in range(filters):
            error, p = errors[pixel, m], winner[pixel, m]
            if error != 0:
                place[end[p]] = m * step
                factor[end[p]] = error
                end[p] += 1


@inline
def rows_at_once(rows: int, vectors: int) -> int:
    """Returns how many of a kernel's rows fit a tile of `vectors` vectors."""
    most = min(rows, 24 // vectors)
    return 7 if most >= 7 else (5 if most >= 5 else min(most, 3))


@inline
def add_windows(
    padded: Any, place: Any, factor: Any, length: Any, pixels: int, gradient: Any, geometry: Any, panels: Any
) -> None:
    """gradient[(m * kh + dy) * step + t] += each listed error of map m times the window under it."""
    filters, kh, line = geometry[3], geometry[4], geometry[11] * geometry[2]
    step = panels[-1, 0] + panels[-1, 1] * panels[-1, 2]
    for panel in range(len(panels)):
        start, vectors = panels[panel, 0], panels[panel, 1]
        dy = 0
        while dy < kh:
            rows = rows_at_once(kh - dy, vectors)
            for m in range(filters):
                if length[m] > m * pixels:
                    list_tile(
                        panels[panel, 4], padded, dy * line + start, line, place, factor, m * pixels,
                        length[m] - m * pixels, gradient, (m * kh + dy) * step + start, step, rows,
                    )  # fmt: skip
            dy += rows


@inline
def add_weights(
    weight: Any, place: Any, factor: Any, end: Any, window: Any, padded_error: Any, geometry: Any, panels: Any
) -> None:
    """padded_error[window of p] += each listed error of pixel p times its map's weights."""
    kh, line = geometry[4], geometry[11] * geometry[2]
    step = panels[-1, 0] + panels[-1, 1] * panels[-1, 2]
    for panel in range(len(panels)):
        start, vectors = panels[panel, 0], panels[panel, 1]
        dy = 0
        while dy < kh:
            rows, first = rows_at_once(kh - dy, vectors), 0
            for p in range(len(end)):
                if end[p] > first:
                    list_tile(
                        panels[panel, 4], weight, dy * step + start, step, place, factor, first, end[p] - first,
                        padded_error, window[p] + dy * line + start, line, rows,
                    )  # fmt: skip
                first = end[p]
            dy += rows


LIST = writable(i32, 1)


@kernel(
    (
        IN4, IN2, IN2, OUT2, OUT2, OUT1, OUT4, readable(i32, 2), i64, OUT1, OUT1, OUT1, OUT1, LIST, OUT1, LIST,
        LIST, LIST, GEOMETRY, PANELS, i64,
    )
)  # fmt: skip
def backward(
    images: Any, weight: Any, outputs: Any, errors: Any, gradient: Any, bias_gradient: Any, image_errors: Any,
    winner: Any, needs_error: int,
    padded: Any, padded_error: Any, padded_weight: Any, padded_gradient: Any, place: Any, factor: Any, length: Any,
    end: Any, window: Any, geometry: Any, panels: Any, code: int,
) -> None:  # fmt: skip
    """Gradients and input error; outputs, errors, winner are [n * pooled pixels, filters], errors changed in place.

    Only the pixel that won a window has an error, and none where relu put out zero: for 2x2 windows an eighth of a full
    product, for 3x3 windows two apart about a seventh. Each error goes once times the window under it to the weight's
    gradient, and once times the weight to the window's error, listed so that one place takes many in registers.
    """
    kh, run = geometry[4], geometry[5] * geometry[2]
    step = panels[-1, 0] + panels[-1, 1] * panels[-1, 2]
    scale_and_sum(outputs, errors, code, bias_gradient)
    padded_gradient[:] = 0
    if needs_error:
        pad_runs(weight, padded_weight, kh, run, step)
    pixels = len(errors) // max(len(images), 1)
    for image in range(len(images)):
        place_image(images[image], padded, 0, geometry[2], geometry[8], geometry[9], geometry[11])
        own, won = errors[image * pixels : (image + 1) * pixels], winner[image * pixels : (image + 1) * pixels]
        list_by_map(own, won, window, place, factor, length)
        add_windows(padded, place, factor, length, pixels, padded_gradient, geometry, panels)
        if needs_error:
            padded_error[:] = 0
            list_by_pixel(own, won, kh * step, place, factor, end)
            add_weights(padded_weight, place, factor, end, window, padded_error, geometry, panels)
            take_image(padded_error, image_errors[image], geometry)
    take_runs(padded_gradient, gradient, kh, run, step)

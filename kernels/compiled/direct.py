"""A convolution done directly in registers, forward and backward, one image at a time.

No windows are unfolded: one image, its channels of one group, lies in a padded scratch array, where the windows of
neighbouring pixels overlap, so a window's numbers are read from a core's nearest cache. Weights are packed into
panels of whole vectors (`adamctl.kernels.tiling.panels`). Scratch arrays are 1-D float32 and end in 64 spare
elements, because tiles read and write whole vectors.

`geometry` is the int64 array of `GEOMETRY_FIELDS`, in that order, of one group: channels and filters are the
group's; `line` is the length of a padded image row in pixels. The error's scratch has `error_lines` rows of
`error_line` pixels, with border_y and border_x zeros before the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.curves import RELU, SIGMOID, TANH, apply_curve
from adamctl.kernels.compiled.jit import IN1, IN2, IN4, OUT1, OUT2, OUT4, i64, inline, kernel, readable
from adamctl.kernels.compiled.tiles import product_tile, sum_tile
from adamctl.kernels.compiled.vectors import LANES, finish_sums

GEOMETRY = readable(i64, 1)
PANELS = readable(i64, 2)
GEOMETRY_FIELDS = (
    "groups", "height", "width", "channels", "filters", "kh", "kw", "sy", "sx", "top", "left", "rows", "columns",
    "line", "error_lines", "error_line", "border_y", "border_x", "block_rows",
)  # fmt: skip


@inline
def best_count(size: int, vectors: int, most: int) -> int:
    """Returns how many of `size` neighbours a tile takes, so that tiles of one size cover them in the least time."""
    best, least = 1, size * (2 * vectors + 1)  # a multiply-add per vector; a tile of one waits for its reads
    for count in (2, 4, 5, 6, 8):
        cost = (size + count - 1) // count * (count * vectors + 1)
        if count <= most and cost <= least:
            best, least = count, cost
    return best


@inline
def place_image(image: Any, padded: Any, first: int, channels: int, top: int, left: int, line: int) -> None:
    """Copies channels [first, first + channels) of an image into the padded scratch, whose border is and stays zero."""
    height, width, every = image.shape
    for y in range(height):
        start = ((y + top) * line + left) * channels
        if channels == every:
            row, inside = image[y].reshape(width * channels), padded[start : start + width * channels]
            for i in range(len(row)):
                inside[i] = row[i]
        else:
            for x in range(width):
                pixel, place = image[y, x], start + x * channels
                for c in range(channels):
                    padded[place + c] = pixel[first + c]


@inline
def pack_forward(weight: Any, packed: Any, first: int, filters: int, panels: Any) -> None:
    """Per panel, packed[tap * lanes + m] = weight[map, tap], zero beyond the last map; `first` is the group's."""
    taps = weight.shape[1]
    for panel in range(len(panels)):
        start, lanes = panels[panel, 0], panels[panel, 1] * panels[panel, 2]
        base = start * taps
        for m in range(lanes):
            if start + m < filters:
                row = weight[first + start + m]
                for tap in range(taps):
                    packed[base + tap * lanes + m] = row[tap]
            else:
                for tap in range(taps):
                    packed[base + tap * lanes + m] = 0


@inline
def row_sums(
    x: Any, x_at: int, x_row: int, x_step: int, w: Any, w_at: int, rows: int, run: int, out: Any, out_at: int,
    out_step: int, columns: int, pixels: int, tile: int,
) -> None:  # fmt: skip
    """out[out_at + x * out_step + m]: the sums of one row of windows; the last tile overlaps the one before."""
    column = 0
    while column < columns:
        column = min(column, columns - pixels)
        sum_tile(
            tile, x, x_at + column * x_step, x_row, x_step, w, w_at, rows, run,
            out, out_at + column * out_step, out_step, pixels,
        )  # fmt: skip
        column += pixels


@kernel((IN4, IN2, IN1, OUT4, OUT1, OUT1, OUT1, OUT1, GEOMETRY, PANELS, i64))
def forward(
    images: Any, weight: Any, bias: Any, outputs: Any, padded: Any, packed: Any, sums: Any, padded_bias: Any,
    geometry: Any, panels: Any, code: int,
) -> None:  # fmt: skip
    """outputs [n, rows, columns, groups * filters] of images; weight [groups * filters, taps]; activation by code."""
    channels, filters, kh, kw, sy, sx = geometry[3], geometry[4], geometry[5], geometry[6], geometry[7], geometry[8]
    rows, columns, line = geometry[11], geometry[12], geometry[13] * channels
    taps, every = weight.shape[1], geometry[0] * filters
    flat = outputs.reshape(outputs.size)
    for m in range(every):
        padded_bias[m] = bias[m]
    for group in range(geometry[0]):
        pack_forward(weight, packed, group * filters, filters, panels)
        for image in range(len(images)):
            place_image(
                images[image], padded, group * channels, channels, geometry[9], geometry[10], geometry[13]
            )  # fmt: skip
            for panel in range(len(panels)):
                start, vectors, lanes = panels[panel, 0], panels[panel, 1], panels[panel, 2]
                pixels, width = best_count(columns, vectors, min(columns, panels[panel, 3])), vectors * lanes
                inside, first = min(width, filters - start), group * filters + start
                count = min(inside, LANES)
                for y in range(rows):
                    row_sums(
                        padded, y * sy * line, line, sx * channels, packed, start * taps, kh, kw * channels,
                        sums, 0, width, columns, pixels, panels[panel, 4],
                    )  # fmt: skip
                    at = ((image * rows + y) * columns) * every + first
                    for x in range(columns):
                        for begin in range(0, inside, LANES):
                            m = min(begin, inside - count)
                            finish_sums(
                                sums, x * width + m, padded_bias, first + m, flat, at + x * every + m, count,
                                code == RELU,
                            )  # fmt: skip
            if group == geometry[0] - 1:
                apply_curve(flat, image * rows * columns * every, rows * columns * every, code)


@inline
def place_derivatives(output: Any, error: Any, target: Any, code: int) -> None:
    """target = error * f'(output), all of one length."""
    zero, one = np.float32(0), np.float32(1)
    if code == RELU:
        for m in range(len(target)):
            target[m] = zero if output[m] <= zero else error[m]
    elif code == TANH:
        for m in range(len(target)):
            target[m] = error[m] * (one - output[m] * output[m])
    elif code == SIGMOID:
        for m in range(len(target)):
            target[m] = error[m] * output[m] * (one - output[m])
    else:
        for m in range(len(target)):
            target[m] = error[m]


@inline
def place_errors(
    outputs: Any, errors: Any, bias_gradient: Any, scratch: Any, at: int, first: int, filters: int, code: int
) -> None:
    """Takes a row of errors through the activation's derivative into the scratch and adds it to the bias's gradient."""
    columns, every = errors.shape
    if filters == every:  # the row lies in one piece
        size = columns * filters
        place_derivatives(outputs.reshape(size), errors.reshape(size), scratch[at : at + size], code)
    else:
        for x in range(columns):
            own, start = slice(first, first + filters), at + x * filters
            place_derivatives(outputs[x, own], errors[x, own], scratch[start : start + filters], code)
    total, fours = bias_gradient[first : first + filters], columns - columns % 4
    for x in range(0, fours, 4):  # four pixels at a time: each sum waits for the one before
        start = at + x * filters
        one, two = scratch[start : start + filters], scratch[start + filters : start + 2 * filters]
        three, four = (
            scratch[start + 2 * filters : start + 3 * filters],
            scratch[start + 3 * filters : start + 4 * filters],
        )
        for m in range(filters):
            total[m] += (one[m] + two[m]) + (three[m] + four[m])
    for x in range(fours, columns):
        last = scratch[at + x * filters : at + (x + 1) * filters]
        for m in range(filters):
            total[m] += last[m]


@inline
def add_products(
    scratch: Any, e_at: int, padded: Any, x_at: int, gradient: Any, rows: int, geometry: Any, panels: Any
) -> None:
    """Adds a block of pixel rows' products to gradient[(m * kh + dy) * step + t], step a whole number of panels."""
    channels, filters, kh, sy, sx = geometry[3], geometry[4], geometry[5], geometry[7], geometry[8]
    columns, line, error_line = geometry[12], geometry[13] * channels, geometry[15] * filters
    step = panels[-1, 0] + panels[-1, 1] * panels[-1, 2]
    for dy in range(kh):
        for panel in range(len(panels)):
            start, vectors = panels[panel, 0], panels[panel, 1]
            maps = best_count(filters, vectors, panels[panel, 3])
            for m in range(0, filters, maps):
                product_tile(
                    panels[panel, 4], scratch, e_at + m, error_line, filters, padded, x_at + dy * line + start,
                    sy * line, sx * channels, rows, columns, gradient, (m * kh + dy) * step + start, kh * step, maps,
                )  # fmt: skip


@inline
def take_products(products: Any, gradient: Any, first: int, geometry: Any, panels: Any) -> None:
    """Copies the sums of `add_products` into the group's rows of the weight's gradient."""
    filters, kh, run = geometry[4], geometry[5], geometry[6] * geometry[3]
    step = panels[-1, 0] + panels[-1, 1] * panels[-1, 2]
    for m in range(filters):
        for dy in range(kh):
            start = (m * kh + dy) * step
            target, source = gradient[first + m, dy * run : (dy + 1) * run], products[start : start + run]
            for t in range(run):
                target[t] = source[t]


@inline
def pack_backward(weight: Any, packed: Any, first: int, geometry: Any, panels: Any) -> None:
    """Weights for the input error, phase after phase: taps dy = a, a + sy, ... in falling order meet rising errors.

    Pixels whose place in the padded image leaves the same remainders (a, b) by the stride form a phase: the same taps
    reach all of them, so that their errors are a convolution of stride 1 with these taps.
    """
    channels, filters, kh, kw, sy, sx = geometry[3], geometry[4], geometry[5], geometry[6], geometry[7], geometry[8]
    at = 0
    for a in range(sy):
        for b in range(sx):
            for panel in range(len(panels)):
                start, lanes = panels[panel, 0], panels[panel, 1] * panels[panel, 2]
                inside = min(lanes, channels - start)
                for dy in range(kh - 1 - (kh - 1 - a) % sy, a - 1, -sy):
                    for dx in range(kw - 1 - (kw - 1 - b) % sx, b - 1, -sx):
                        tap = (dy * kw + dx) * channels + start
                        for m in range(filters):
                            target, source = packed[at : at + lanes], weight[first + m, tap : tap + inside]
                            for c in range(inside):
                                target[c] = source[c]
                            for c in range(inside, lanes):
                                target[c] = 0
                            at += lanes


@inline
def input_error(scratch: Any, packed: Any, sums: Any, image_error: Any, first: int, geometry: Any, panels: Any) -> None:
    """Writes one image's error, channels [first, first + channels), phase by phase."""
    channels, filters, kh, kw, sy, sx = geometry[3], geometry[4], geometry[5], geometry[6], geometry[7], geometry[8]
    height, width, top, left, line = geometry[1], geometry[2], geometry[9], geometry[10], geometry[15] * filters
    at = 0
    for a in range(sy):
        for b in range(sx):
            taps_y, taps_x = max((kh - a + sy - 1) // sy, 0), max((kw - b + sx - 1) // sx, 0)
            begin_y, begin_x = (top - a + sy - 1) // sy, (left - b + sx - 1) // sx
            count = (width - 1 + left - b) // sx - begin_x + 1
            from_x = (begin_x - taps_x + 1 + geometry[17]) * filters
            for panel in range(len(panels)):
                start, vectors, lanes = panels[panel, 0], panels[panel, 1], panels[panel, 2]
                pixels, panel_width = best_count(count, vectors, min(count, panels[panel, 3])), vectors * lanes
                inside = min(panel_width, channels - start)
                if count > 0:
                    for y in range(begin_y * sy + a - top, height, sy):
                        row = (y + top - a) // sy - taps_y + 1 + geometry[16]
                        row_sums(
                            scratch, row * line + from_x, line, filters, packed, at, taps_y, taps_x * filters,
                            sums, 0, panel_width, count, pixels, panels[panel, 4],
                        )  # fmt: skip
                        for k in range(count):
                            target = image_error[y, (begin_x + k) * sx + b - left]
                            source = sums[k * panel_width : k * panel_width + inside]
                            for c in range(inside):
                                target[first + start + c] = source[c]
                at += taps_y * taps_x * filters * panel_width


@kernel(
    (
        IN4, IN2, IN4, IN4, OUT2, OUT1, OUT4, OUT1, OUT1, OUT1, OUT1, OUT1, GEOMETRY, PANELS, PANELS, i64, i64, i64,
    )
)  # fmt: skip
def backward(
    images: Any, weight: Any, outputs: Any, errors: Any, gradient: Any, bias_gradient: Any, image_errors: Any,
    padded: Any, scratch: Any, packed: Any, sums: Any, products: Any, geometry: Any, tap_panels: Any,
    channel_panels: Any, code: int, needs_gradient: int, needs_error: int,
) -> None:  # fmt: skip
    """Gradients of weight and bias, and the images' errors where needed; arrays as in `forward`.

    The error's scratch holds a whole image where it has a border, for the input error's sake; else one block of rows.
    """
    channels, filters, line = geometry[3], geometry[4], geometry[13] * geometry[3]
    rows, block_rows, error_line = geometry[11], geometry[18], geometry[15] * filters
    whole = geometry[14] >= rows
    for m in range(len(bias_gradient)):
        bias_gradient[m] = 0
    for group in range(geometry[0]):
        first = group * filters
        for i in range(len(products)):
            products[i] = 0
        if needs_error:
            pack_backward(weight, packed, first, geometry, channel_panels)
        for image in range(len(images)):
            if needs_gradient:
                place_image(
                    images[image], padded, group * channels, channels, geometry[9], geometry[10], geometry[13]
                )  # fmt: skip
            for block in range(0, rows, block_rows):
                count, place = min(block_rows, rows - block), block if whole else 0
                at = (place + geometry[16]) * error_line + geometry[17] * filters
                for y in range(count):
                    place_errors(
                        outputs[image, block + y], errors[image, block + y], bias_gradient, scratch,
                        at + y * error_line, first, filters, code,
                    )  # fmt: skip
                if needs_gradient:
                    add_products(
                        scratch, at, padded, block * geometry[7] * line, products, count, geometry, tap_panels
                    )  # fmt: skip
            if needs_error:
                input_error(
                    scratch, packed, sums, image_errors[image], group * channels, geometry, channel_panels
                )  # fmt: skip
        if needs_gradient:
            take_products(products, gradient, first, geometry, tap_panels)

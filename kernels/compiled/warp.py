"""Images under an affine map and an elastic displacement, row by row, to the bit as numpy computes it.

Arrays are indexed flat: a view of a row costs more than the row's arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import f32, i32, i64, inline, kernel, readable, u8, u64, writable
from adamctl.kernels.numeric.mix import KEY_FACTORS, KEY_STEP

_SIXTH = np.float32(1 / 6)
_TAPS = 4
_FAR = 1 << 24  # no image is so large, and float32 holds whole numbers up to it


def _exact(function: Any) -> Any:
    return inline(function, relaxed=False)


@_exact
def splines(size: Any, nodes: Any, phase: Any, spacing: Any, firsts: Any, weights: Any) -> None:
    """Writes `firsts` [size] and `weights` [TAPS * size] of the spline along one axis."""
    for place in range(size):
        at = np.float32(place) / spacing + phase
        first = min(max(np.int32(at), np.int32(0)), np.int32(nodes - _TAPS))
        firsts[place] = first
        f = at - np.float32(first)
        g, f2 = np.float32(1) - f, f * f
        f3 = f2 * f
        weights[place] = g * g * g * _SIXTH
        weights[size + place] = (np.float32(3) * f3 - np.float32(6) * f2 + np.float32(4)) * _SIXTH
        weights[2 * size + place] = (np.float32(3) * (f + f2 - f3) + np.float32(1)) * _SIXTH
        weights[3 * size + place] = f3 * _SIXTH


@_exact
def along_rows(
    nodes: Any, first: Any, lines: Any, count: Any, across: Any, width: Any, firsts: Any, weights: Any
) -> None:
    """Writes the spline at every column of each of `count` lines of nodes, of which the first begins at `first`."""
    for line in range(count):
        begin = first + line * across
        for x in range(width):
            node = np.uint64(begin + firsts[x])
            lines[np.uint64(line * width + x)] = (
                weights[x] * nodes[node]
                + weights[width + x] * nodes[node + np.uint64(1)]
                + weights[2 * width + x] * nodes[node + np.uint64(2)]
                + weights[3 * width + x] * nodes[node + np.uint64(3)]
            )


@_exact
def affine(matrix: Any, y: Any, places: Any) -> None:
    """Writes where a row's pixels come from by a line of the matrix."""
    start, step = matrix[0] * np.float32(y) + matrix[2], matrix[1]
    for x in range(len(places)):
        places[x] = start + step * np.float32(x)


@_exact
def add_displacements(lines: Any, first: Any, w0: Any, w1: Any, w2: Any, w3: Any, places: Any) -> None:
    """Adds the spline between four lines, which begin at `first`."""
    width = len(places)
    for x in range(width):
        at = np.uint64(first + x)
        places[x] += (
            w0 * lines[at] + w1 * lines[at + np.uint64(width)]
            + w2 * lines[at + np.uint64(2 * width)] + w3 * lines[at + np.uint64(3 * width)]
        )  # fmt: skip


@_exact
def split(rows: Any, columns: Any, starts: Any, height: Any, stride: Any, channels: Any) -> None:
    """Turns places into the upper left of four padded pixels, in `starts`, and how far down and right of it they are.

    A place outside becomes one between pixels of the border; so does one that is no number.
    """
    zero, one = np.float32(0), np.float32(1)
    row_max, column_max = np.float32(height + 1), np.float32(len(rows) + 1)
    for x in range(len(rows)):
        row, column = rows[x] + one, columns[x] + one
        row = row if row > zero else zero
        row = row if row < row_max else row_max
        column = column if column > zero else zero
        column = column if column < column_max else column_max
        top, left = np.int32(row), np.int32(column)
        rows[x], columns[x] = row - np.float32(top), column - np.float32(left)
        starts[x] = top * np.int32(stride) + left * np.int32(channels)


@_exact
def between(padded: Any, upper: Any, lower: Any, channels: Any, down: Any, right: Any) -> Any:
    """The value between four pixels."""
    a, b = padded[upper], padded[upper + channels]
    c, d = padded[lower], padded[lower + channels]
    top, bottom = a + right * (b - a), c + right * (d - c)
    return top + down * (bottom - top)


@_exact
def read_row(
    padded: Any, starts: Any, rows: Any, columns: Any, stride: Any, channels: Any, half: Any, to: Any, out: Any
) -> None:
    """Writes a row of pixels into `to` from `out`."""
    if channels == 1:
        for x in range(len(starts)):
            upper = np.uint64(np.uint32(starts[x]))
            value = between(padded, upper, upper + np.uint64(stride), np.uint64(1), rows[x], columns[x])
            to[np.uint64(out + x)] = value + half
        return
    for x in range(len(starts)):
        upper = np.uint64(np.uint32(starts[x]))
        for channel in range(channels):
            at = upper + np.uint64(channel)
            value = between(padded, at, at + np.uint64(stride), np.uint64(channels), rows[x], columns[x])
            to[np.uint64(out + x * channels + channel)] = value + half


@_exact
def pad(flat: Any, begin: Any, height: Any, row_size: Any, stride: Any, channels: Any, padded: Any) -> None:
    """Writes an image inside the border."""
    for y in range(height):
        to, at = np.uint64((y + 1) * stride + channels), np.uint64(begin + y * row_size)
        for i in range(np.uint64(row_size)):
            padded[to + i] = np.float32(flat[at + i])


@_exact
def is_whole(matrix: Any) -> Any:
    """Whether a matrix moves an image by whole pixels, and perhaps swaps left and right."""
    down, right = matrix[0, 2], matrix[1, 2]
    straight = matrix[0, 0] == 1 and matrix[0, 1] == 0 and matrix[1, 0] == 0 and abs(matrix[1, 1]) == 1
    near = abs(down) < _FAR and abs(right) < _FAR  # and no NaN
    return straight and near and down == np.float32(np.int32(down)) and right == np.float32(np.int32(right))


@_exact
def move(
    padded: Any, matrix: Any, height: Any, width: Any, channels: Any, stride: Any, half: Any, to: Any, out: Any
) -> None:
    """Writes an image of which `is_whole` holds: the same values as pixel by pixel."""
    down, right, step = np.int64(matrix[0, 2]), np.int64(matrix[1, 2]), np.int64(matrix[1, 1])
    first, last = (-right, width - right) if step > 0 else (right - width + 1, right + 1)
    first, last = min(max(first, 0), width), min(max(last, 0), width)
    border = padded[0] + half
    for y in range(height):
        begin, row = out + y * width * channels, min(max(y + down + 1, 0), height + 1) * stride
        for i in range(first * channels):
            to[np.uint64(begin + i)] = border
        for i in range(last * channels, width * channels):
            to[np.uint64(begin + i)] = border
        if step > 0:
            at = row + (right + 1) * channels
            for i in range(first * channels, last * channels):
                to[np.uint64(begin + i)] = padded[np.uint64(at + i)] + half
            continue
        for x in range(first, last):
            at = row + (right + 1 - x) * channels
            for channel in range(channels):
                to[np.uint64(begin + x * channels + channel)] = padded[np.uint64(at + channel)] + half


NUMBERS, LINE, PLACES = readable(f32, 1), writable(f32, 1), writable(i32, 1)
REST = (
    readable(f32, 3), readable(f32, 4), readable(f32, 2), f32, f32, f32, LINE, LINE, LINE, PLACES, LINE, PLACES, LINE,
    PLACES, LINE,
)  # fmt: skip


@kernel((writable(f32, 4), *REST), (writable(u8, 4), *REST), relaxed=False)
def warp(
    images: Any, matrices: Any, nodes: Any, phases: Any, spacing: Any, border: Any, half: Any, padded: Any, rows: Any,
    columns: Any, starts: Any, lines: Any, row_firsts: Any, row_weights: Any, column_firsts: Any, column_weights: Any,
) -> None:  # fmt: skip
    """As `adamctl.kernels.numeric.warp.warp`; `half` is added to values, and all after it is scratch."""
    examples, height, width, channels = images.shape
    deep, across = nodes.shape[2], nodes.shape[3]
    flat, flat_nodes = images.reshape(images.size), nodes.reshape(nodes.size)
    row_size, stride = width * channels, (width + 3) * channels
    for i in range(padded.size):
        padded[i] = border
    for number in range(examples):
        begin = number * height * row_size
        pad(flat, begin, height, row_size, stride, channels, padded)
        if across == 0 and is_whole(matrices[number]):
            move(padded, matrices[number], height, width, channels, stride, half, flat, begin)
            continue
        if across > 0:
            splines(height, deep, phases[number, 0], spacing, row_firsts, row_weights)
            splines(width, across, phases[number, 1], spacing, column_firsts, column_weights)
            along_rows(
                flat_nodes, number * 2 * deep * across, lines, 2 * deep, across, width, column_firsts, column_weights
            )  # fmt: skip
        for y in range(height):
            affine(matrices[number, 0], y, rows)
            affine(matrices[number, 1], y, columns)
            if across > 0:
                first = row_firsts[y] * width
                w0, w1 = row_weights[y], row_weights[height + y]
                w2, w3 = row_weights[2 * height + y], row_weights[3 * height + y]
                add_displacements(lines, first, w0, w1, w2, w3, rows)
                add_displacements(lines, first + deep * width, w0, w1, w2, w3, columns)
            split(rows, columns, starts, height, stride, channels)
            read_row(padded, starts, rows, columns, stride, channels, half, flat, begin + y * row_size)


_STEP, _FIRST, _SECOND = np.uint64(KEY_STEP), np.uint64(KEY_FACTORS[0]), np.uint64(KEY_FACTORS[1])
_OF_24_BITS = np.float32(2.0**-24)


@kernel((readable(u64, 1), readable(i64, 1), writable(f32, 2)), relaxed=False)
def uniform_pairs(keys: Any, draws: Any, out: Any) -> None:
    """As `adamctl.roles.data.augment.chance.uniform_pairs`; `out` is [keys, 2 * draws]."""
    for number in range(len(keys)):
        for draw in range(len(draws)):
            word = keys[number] + (np.uint64(draws[draw]) + np.uint64(1)) * _STEP
            word = (word ^ (word >> np.uint64(30))) * _FIRST
            word = (word ^ (word >> np.uint64(27))) * _SECOND
            word ^= word >> np.uint64(31)
            out[number, 2 * draw] = np.float32(np.int32(word >> np.uint64(40))) * _OF_24_BITS
            low = (word >> np.uint64(8)) & np.uint64(0xFF_FFFF)
            out[number, 2 * draw + 1] = np.float32(np.int32(low)) * _OF_24_BITS

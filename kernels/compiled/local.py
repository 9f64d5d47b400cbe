"""Windows of a locally connected layer, place by place, and pooling by the root of the sum of squares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN4, OUT4, f32, i64, inline, kernel, readable, writable


@inline
def reach(x: int, sx: int, left: int, kw: int, width: int, channels: int) -> tuple[int, int, int]:
    """Where in a run of kw * channels numbers the image begins and ends, and the number in the row it starts from."""
    first = x * sx - left
    return max(-first, 0) * channels, min(kw, width - first) * channels, first * channels


@kernel((IN4, writable(f32, 3), i64, i64, i64, i64, i64, i64, i64, i64))
def unfold_places(
    images: Any, windows: Any, row: int, columns: int, kh: int, kw: int, sy: int, sx: int, top: int, left: int
) -> None:
    """windows[p, n, (dy, dx, c)] = the window of place p, counted from the start of output row `row`, of image n."""
    height, width, channels = images.shape[1:]
    run = kw * channels
    for p in range(windows.shape[0]):
        y = (row + p // columns) * sy - top
        start, stop, first = reach(p % columns, sx, left, kw, width, channels)
        for image in range(windows.shape[1]):
            target = windows[p, image]
            for dy in range(kh):
                into = target[dy * run : dy * run + run]
                if y + dy < 0 or y + dy >= height:
                    into[:] = 0
                    continue
                source = images[image, y + dy].reshape(width * channels)
                if start == 0 and stop == run:
                    piece = source[first : first + run]
                    for t in range(run):
                        into[t] = piece[t]
                else:
                    for t in range(run):
                        into[t] = source[first + t] if start <= t < stop else np.float32(0)


@kernel((readable(f32, 3), OUT4, i64, i64, i64, i64, i64, i64, i64, i64))
def fold_places(
    windows: Any, images: Any, row: int, columns: int, kh: int, kw: int, sy: int, sx: int, top: int, left: int
) -> None:
    """The transpose of `unfold_places`, added to what is in `images`."""
    height, width, channels = images.shape[1:]
    run = kw * channels
    for p in range(windows.shape[0]):
        y = (row + p // columns) * sy - top
        start, stop, first = reach(p % columns, sx, left, kw, width, channels)
        for image in range(windows.shape[1]):
            source = windows[p, image]
            for dy in range(kh):
                if 0 <= y + dy < height:
                    target = images[image, y + dy].reshape(width * channels)
                    piece, into = source[dy * run + start : dy * run + stop], target[first + start : first + stop]
                    for t in range(len(piece)):
                        into[t] += piece[t]


@kernel((IN4, OUT4, i64, i64, i64, i64))
def l2pool_forward(images: Any, outputs: Any, kh: int, kw: int, sy: int, sx: int) -> None:
    """outputs = the root of the sum of squares of each window."""
    batch, rows, columns, channels = outputs.shape
    for image in range(batch):
        for y in range(rows):
            for x in range(columns):
                total = outputs[image, y, x]
                total[:] = 0
                for number in range(kh * kw):
                    pixel = images[image, y * sy + number // kw, x * sx + number % kw]
                    for c in range(channels):
                        total[c] += pixel[c] * pixel[c]
                for c in range(channels):
                    total[c] = math.sqrt(total[c])


@kernel((IN4, IN4, IN4, writable(f32, 1), OUT4, i64, i64, i64, i64))
def l2pool_backward(
    images: Any, outputs: Any, errors: Any, share: Any, image_errors: Any, kh: int, kw: int, sy: int, sx: int
) -> None:
    """image_errors = sum over the windows of a pixel of error * pixel / output, 0 / 0 being 0; `share` is scratch."""
    batch, rows, columns, channels = outputs.shape
    zero = np.float32(0)
    image_errors[...] = 0
    for image in range(batch):
        for y in range(rows):
            for x in range(columns):
                root, error = outputs[image, y, x], errors[image, y, x]
                for c in range(channels):
                    share[c] = zero if root[c] == zero else error[c] / root[c]
                for number in range(kh * kw):
                    pixel = images[image, y * sy + number // kw, x * sx + number % kw]
                    into = image_errors[image, y * sy + number // kw, x * sx + number % kw]
                    for c in range(channels):
                        into[c] += share[c] * pixel[c]

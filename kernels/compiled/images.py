"""Max-pooling; images [n, height, width, channels]."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN4, OUT4, i32, i64, kernel, readable, writable


@kernel((IN4, OUT4, writable(i32, 4), i64, i64, i64, i64))
def maxpool_forward(images: Any, outputs: Any, winner: Any, kh: int, kw: int, sy: int, sx: int) -> None:
    """outputs = the largest of each window, NaN being largest; winner = its place dy * kw + dx, the first of equals."""
    batch, rows, columns, channels = outputs.shape
    for image in range(batch):
        for y in range(rows):
            for x in range(columns):
                best, place = outputs[image, y, x], winner[image, y, x]
                first = images[image, y * sy, x * sx]
                for c in range(channels):
                    best[c] = first[c]
                    place[c] = 0
                for number in range(1, kh * kw):
                    pixel = images[image, y * sy + number // kw, x * sx + number % kw]
                    for c in range(channels):
                        value, held = pixel[c], best[c]
                        better = value > held or (value != value and held == held)
                        best[c] = value if better else held
                        place[c] = np.int32(number) if better else place[c]


@kernel((IN4, readable(i32, 4), OUT4, i64, i64, i64, i64))
def maxpool_backward(errors: Any, winner: Any, images: Any, kh: int, kw: int, sy: int, sx: int) -> None:
    """images = each window's error at its winner, summed where windows overlap."""
    batch, rows, columns, channels = errors.shape
    zero = np.float32(0)
    images[...] = 0
    for image in range(batch):
        for y in range(rows):
            for x in range(columns):
                error, place, number = errors[image, y, x], winner[image, y, x], np.int32(0)
                for dy in range(kh):
                    for dx in range(kw):
                        pixel = images[image, y * sy + dy, x * sx + dx]
                        for c in range(channels):
                            pixel[c] += error[c] if place[c] == number else zero
                        number += np.int32(1)

"""Local contrast normalisation: the passes over all maps, one pixel at a time; the smoothing between them is a product.

Images are [n, rows, width, maps], what is the same for all maps of a pixel is [n, rows, width]. `first` is the
first input row that is centred, `inner` the first centred row that is an output, `map_first` the first map that is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN4, OUT4, f32, i64, kernel, readable, writable

IN3, OUT3 = readable(f32, 3), writable(f32, 3)


@kernel((IN4, OUT3))
def mean_of_maps(images: Any, means: Any) -> None:
    """means = the mean over the maps of each pixel."""
    batch, rows, width, maps = images.shape
    share = np.float32(1.0 / maps)
    for image in range(batch):
        for y in range(rows):
            for x in range(width):
                pixel, total = images[image, y, x], np.float32(0)
                for c in range(maps):
                    total += pixel[c]
                means[image, y, x] = total * share


@kernel((IN4, IN3, OUT3, i64))
def mean_square(images: Any, means: Any, squares: Any, first: int) -> None:
    """squares = the mean over the maps of (image - mean)^2, of the rows from `first` on."""
    batch, rows, width = means.shape
    maps = images.shape[3]
    share = np.float32(1.0 / maps)
    for image in range(batch):
        for y in range(rows):
            for x in range(width):
                pixel, mean, total = images[image, first + y, x], means[image, y, x], np.float32(0)
                for c in range(maps):
                    total += (pixel[c] - mean) * (pixel[c] - mean)
                squares[image, y, x] = total * share


@kernel((IN4, IN3, OUT3, OUT4, i64, i64, i64, f32))
def divide(
    images: Any, means: Any, deviations: Any, outputs: Any, first: int, inner: int, map_first: int, least: Any
) -> None:
    """deviations, squared, become max(root, least); outputs = (image - mean) / deviation."""
    batch, rows, width, maps = outputs.shape
    for image in range(batch):
        for y in range(rows):
            for x in range(width):
                root = np.float32(math.sqrt(deviations[image, y, x]))
                deviation = least if root < least else root
                deviations[image, y, x] = deviation
                share, mean = np.float32(1) / deviation, means[image, inner + y, x]
                pixel, output = images[image, first + inner + y, x], outputs[image, y, x]
                for c in range(maps):
                    output[c] = (pixel[map_first + c] - mean) * share


@kernel((IN4, IN4, IN3, OUT3, f32))
def square_error(outputs: Any, errors: Any, deviations: Any, square_errors: Any, least: Any) -> None:
    """square_errors = -sum over the maps of error * output / (2 deviation^2), 0 where the deviation is the least."""
    batch, rows, width, maps = outputs.shape
    for image in range(batch):
        for y in range(rows):
            for x in range(width):
                output, error, total = outputs[image, y, x], errors[image, y, x], np.float32(0)
                for c in range(maps):
                    total += error[c] * output[c]
                deviation = deviations[image, y, x]
                gate = np.float32(0) if deviation <= least else np.float32(-0.5) / (deviation * deviation)
                square_errors[image, y, x] = total * gate


@kernel((IN4, IN3, IN3, IN3, IN4, OUT4, OUT3, i64, i64, i64))
def centred_error(
    images: Any, means: Any, deviations: Any, square_errors: Any, errors: Any, image_errors: Any, sums: Any,
    first: int, inner: int, map_first: int,
) -> None:  # fmt: skip
    """image_errors = the error at image - mean, 0 in rows that are not centred; sums = its sum over the maps."""
    batch, rows, width, maps = image_errors.shape
    twice = np.float32(2.0 / maps)
    own = errors.shape[3]
    for image in range(batch):
        for row in range(rows):
            y = row - first
            if y < 0 or y >= means.shape[1]:
                image_errors[image, row] = 0
                continue
            for x in range(width):
                pixel, into = images[image, row, x], image_errors[image, row, x]
                mean, factor, total = means[image, y, x], square_errors[image, y, x] * twice, np.float32(0)
                for c in range(maps):
                    into[c] = (pixel[c] - mean) * factor
                if 0 <= y - inner < errors.shape[1]:
                    share, error = np.float32(1) / deviations[image, y - inner, x], errors[image, y - inner, x]
                    for c in range(own):
                        into[map_first + c] += error[c] * share
                for c in range(maps):
                    total += into[c]
                sums[image, y, x] = total


@kernel((IN3, OUT4))
def subtract_mean_error(mean_errors: Any, image_errors: Any) -> None:
    """image_errors -= mean error / maps."""
    batch, rows, width, maps = image_errors.shape
    share = np.float32(1.0 / maps)
    for image in range(batch):
        for y in range(rows):
            for x in range(width):
                into, part = image_errors[image, y, x], mean_errors[image, y, x] * share
                for c in range(maps):
                    into[c] -= part

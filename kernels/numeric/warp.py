"""Warps of images: an affine map and an elastic displacement in one pass, with bilinear values between pixels.

The elastic displacement is that of Simard, Steinkraus and Platt ("Best practices for convolutional neural networks",
2003, section 2), a field of random numbers smoothed by a Gaussian, made cheaper: a uniform cubic B-spline over a coarse
grid of random nodes. With a spacing of sigma * sqrt(3) its correlation has the variance of the Gaussian's.

Compiled code and numpy give the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import choose, compiled_if

Images = NDArray[Any]
"""[n, height, width, channels], float32 or uint8, C-contiguous."""
Floats = NDArray[np.float32]
TAPS = 4  # nodes per axis that a cubic B-spline has at each place
_SIXTH = np.float32(1 / 6)


class Warps(NamedTuple):
    """Where n warped images take their pixels from: pixel p comes from matrix [p, 1] + displacement(p)."""

    matrices: Floats
    """[n, 2, 3]: (row, column, 1) of a pixel to row and column in the source, in pixels, before displacement."""
    nodes: Floats
    """[n, 2, *node_counts]: the spline's nodes, displacements of row and column in pixels; [n, 2, 0, 0] for none."""
    phases: Floats
    """[n, 2]: where between two nodes row 0 and column 0 lie, 0 <= phase < 1."""
    spacing: float
    """Pixels between two nodes."""


class Splines(NamedTuple):
    """The spline along one axis: at a place, the sum over k of weights[k] * node[first + k]."""

    firsts: NDArray[np.int32]
    """[size]."""
    weights: Floats
    """[TAPS, size]."""


def node_counts(height: int, width: int, spacing: float) -> tuple[int, int]:
    """Returns how many nodes, down and across, cover an image of this size for any phase."""
    rows, columns = (int((size - 1) / spacing) + TAPS + 1 for size in (height, width))
    return rows, columns


def warp(images: Images, warps: Warps, border: float, backend: str | None = None) -> None:
    """Warps each image in place; a place outside the image counts as `border`, a number that the images can hold.

    The identity, whole-pixel moves and reflections are exact. Bytes are rounded to the nearest.

    Raises:
        ValueError: the arrays do not fit together.
    """
    _check(images, warps)
    _, height, width, channels = images.shape
    half = np.float32(0.5 if images.dtype == np.uint8 else 0.0)
    edge, spacing = np.float32(border), np.float32(warps.spacing)
    compiled = compiled_if(choose(backend), "warp")
    if compiled is not None:
        size, deep = (height + 3) * (width + 3) * channels, warps.nodes.shape[2]
        padded, rows, columns = (np.empty(count, np.float32) for count in (size, width, width))
        lines, row_weights, column_weights = (
            np.empty(count, np.float32) for count in (2 * deep * width, TAPS * height, TAPS * width)
        )
        starts, row_firsts, column_firsts = (np.empty(count, np.int32) for count in (width, height, width))
        compiled.warp(
            images, warps.matrices, warps.nodes, warps.phases, spacing, edge, half, padded, rows, columns, starts,
            lines, row_firsts, row_weights, column_firsts, column_weights,
        )  # fmt: skip
        return
    for image, matrix, nodes, phases in zip(images, warps.matrices, warps.nodes, warps.phases, strict=True):
        places = _places(matrix, height, width)
        if nodes.size:
            axes = zip((height, width), nodes.shape[1:], phases, strict=True)
            places += _displacement(nodes, *(_spline(size, count, phase, spacing) for size, count, phase in axes))
        image[...] = _sampled(image, places, edge) + half


def _check(images: Images, warps: Warps) -> None:
    n, height, width, _ = images.shape
    wanted = (n, 2, *node_counts(height, width, warps.spacing))
    for what, found, expected in (
        ("matrices", warps.matrices.shape, ((n, 2, 3),)),
        ("nodes", warps.nodes.shape, (wanted, (n, 2, 0, 0))),
        ("phases", warps.phases.shape, ((n, 2),)),
    ):
        if found not in expected:
            raise ValueError(f"warp: expected {what} of shape {expected[0]}; found {found}")


def _spline(size: int, count: int, phase: np.float32, spacing: np.float32) -> Splines:
    """Returns the spline of `count` nodes along an axis of `size` pixels."""
    places = np.arange(size, dtype=np.float32) / spacing + phase
    firsts = np.clip(places.astype(np.int32), 0, count - TAPS)  # rounding may make a place its node's neighbour's
    f = places - firsts.astype(np.float32)
    g, f2 = 1 - f, f * f
    f3 = f2 * f
    four = (g * g * g, 3 * f3 - 6 * f2 + 4, 3 * (f + f2 - f3) + 1, f3)
    return Splines(firsts, np.stack(four) * _SIXTH)


def _places(matrix: Floats, height: int, width: int) -> Floats:
    """Returns [2, height, width]: the row and the column in the source of every pixel, by the affine map alone."""
    rows, columns = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    return np.stack([(by_row * rows + offset) + by_column * columns for by_row, by_column, offset in matrix])


def _displacement(nodes: Floats, rows: Splines, columns: Splines) -> Floats:
    """Returns [2, height, width]: the spline at every pixel. Added in the order of the compiled code."""
    lines = sum(columns.weights[k] * nodes[:, :, columns.firsts + k] for k in range(TAPS))
    total: Floats = sum(rows.weights[k][:, None] * lines[:, rows.firsts + k] for k in range(TAPS))
    return total


def _sampled(image: Images, places: Floats, border: np.float32) -> Floats:
    """Returns the image at `places`: between pixels of a border around it if they lie outside or are no numbers."""
    height, width, channels = image.shape
    padded = np.full((height + 3, width + 3, channels), border, np.float32)
    padded[1 : height + 1, 1 : width + 1] = image
    last = np.array([height + 1, width + 1], np.float32)[:, None, None]
    places = places + np.float32(1)
    places = np.where(places > 0, np.where(places < last, places, last), np.float32(0))
    corners = places.astype(np.int32)
    down, right = (places - corners.astype(np.float32))[..., None]
    y, x = corners
    a, b, c, d = padded[y, x], padded[y, x + 1], padded[y + 1, x], padded[y + 1, x + 1]
    top, bottom = a + right * (b - a), c + right * (d - c)
    sampled: Floats = top + down * (bottom - top)
    return sampled

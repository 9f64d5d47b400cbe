"""Warps of images: an affine map and an elastic displacement in one pass, with bilinear values between pixels.

The elastic displacement is that of Simard, Steinkraus and Platt ("Best practices for convolutional neural networks",
2003, section 2), a field of random numbers smoothed by a Gaussian, made cheaper: a uniform cubic B-spline over a coarse
grid of random nodes. With a spacing of sigma * sqrt(3) its correlation has the variance of the Gaussian's.

Compiled code and numpy give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import choose, compiled_if

Images = NDArray[np.float32]
"""[n, height, width, channels], C-contiguous."""
Numbers = NDArray[np.float64]
TAPS = 4  # nodes per axis that a cubic B-spline has at each place


class Warps(NamedTuple):
    """Where n warped images take their pixels from: pixel p comes from matrix [p, 1] + displacement(p)."""

    matrices: Numbers
    """[n, 2, 3]: (row, column, 1) of a pixel to row and column in the source, in pixels, before displacement."""
    nodes: Numbers
    """[n, 2, *node_counts]: the spline's nodes, displacements of row and column in pixels; [n, 2, 0, 0] for none."""
    phases: Numbers
    """[n, 2]: where between two nodes row 0 and column 0 lie, 0 <= phase < 1."""
    spacing: float
    """Pixels between two nodes."""


class Splines(NamedTuple):
    """The spline along one axis: at a place, the sum over k of weights[k] * node[first + k]."""

    firsts: NDArray[np.int64]
    """[n, size]."""
    weights: Numbers
    """[n, size, TAPS]."""


def node_counts(height: int, width: int, spacing: float) -> tuple[int, int]:
    """Returns how many nodes, down and across, cover an image of this size for any phase."""
    rows, columns = (int((size - 1) / spacing) + TAPS + 1 for size in (height, width))
    return rows, columns


def warp(images: Images, warps: Warps, border: float, out: Images, backend: str | None = None) -> None:
    """Writes each image's warp into `out`; a place outside the image counts as `border`.

    The identity, whole-pixel moves and reflections are exact.

    Args:
        out: [n, height, width, channels], apart from `images`.

    Raises:
        ValueError: the arrays do not fit together.
    """
    _check(images, warps, out)
    compiled = compiled_if(choose(backend), "warp")
    rows = _splines(images.shape[1], warps.phases[:, 0], warps.spacing)
    columns = _splines(images.shape[2], warps.phases[:, 1], warps.spacing)
    if compiled is not None:
        line = np.empty((2, max(warps.nodes.shape[3], 1)))
        at = np.empty((2, images.shape[2]))
        compiled.warp(images, warps.matrices, warps.nodes, *rows, *columns, line, at, np.float32(border), out)
        return
    for number, image in enumerate(images):
        places = _places(warps.matrices[number], *image.shape[:2])
        if warps.nodes.size:
            own_rows, own_columns = (Splines(*(part[number] for part in axis)) for axis in (rows, columns))
            places += _displacement(warps.nodes[number], own_rows, own_columns)
        out[number] = _sampled(image, places, np.float32(border))


def _check(images: Images, warps: Warps, out: Images) -> None:
    n, height, width, _ = images.shape
    wanted = (n, 2, *node_counts(height, width, warps.spacing))
    for what, found, expected in (
        ("out", out.shape, (images.shape,)),
        ("matrices", warps.matrices.shape, ((n, 2, 3),)),
        ("nodes", warps.nodes.shape, (wanted, (n, 2, 0, 0))),
        ("phases", warps.phases.shape, ((n, 2),)),
    ):
        if found not in expected:
            raise ValueError(f"warp: expected {what} of shape {expected[0]}; found {found}")
    if np.may_share_memory(images, out):
        raise ValueError("warp: expected images and out apart; found one memory for both")


def _splines(size: int, phases: Numbers, spacing: float) -> Splines:
    """Returns the spline along an axis of `size` pixels for each phase."""
    places = np.arange(size) / spacing + phases[:, None]
    firsts = np.floor(places)
    f = places - firsts
    g, f2 = 1 - f, f * f
    f3 = f2 * f
    four = (g * g * g, 3 * f3 - 6 * f2 + 4, 3 * (f + f2 - f3) + 1, f3)
    return Splines(firsts.astype(np.int64), np.ascontiguousarray(np.stack(four, axis=-1) / 6))


def _places(matrix: Numbers, height: int, width: int) -> Numbers:
    """Returns [2, height, width]: the row and the column in the source of every pixel, by the affine map alone."""
    rows, columns = np.arange(height)[:, None], np.arange(width)
    return np.stack([by_row * rows + by_column * columns + offset for by_row, by_column, offset in matrix])


def _displacement(nodes: Numbers, rows: Splines, columns: Splines) -> Numbers:
    """Returns [2, height, width]: the spline at every pixel. Added in the order of the compiled code."""
    lines = sum(rows.weights[:, k, None] * nodes[:, rows.firsts + k] for k in range(TAPS))
    total: Numbers = sum(columns.weights[:, k] * lines[:, :, columns.firsts + k] for k in range(TAPS))  # type: ignore
    return total


def _sampled(image: Images, places: Numbers, border: np.float32) -> Images:
    """Returns the image at `places`."""
    height, width, channels = image.shape
    inside = (places[0] > -1) & (places[0] < height) & (places[1] > -1) & (places[1] < width)
    places = np.where(inside, places, 0)
    corners = np.floor(places)
    down, right = (places - corners).astype(np.float32)[..., None]
    y, x = corners.astype(np.int64) + 1
    padded = np.full((height + 2, width + 2, channels), border, np.float32)
    padded[1 : height + 1, 1 : width + 1] = image
    a, b, c, d = padded[y, x], padded[y, x + 1], padded[y + 1, x], padded[y + 1, x + 1]
    top, bottom = a + right * (b - a), c + right * (d - c)
    return np.where(inside[..., None], top + down * (bottom - top), border)

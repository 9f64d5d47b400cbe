"""What is left to chance when images are augmented: the warp of an example in a pass, and how light it is.

A warp is an affine map about the image's centre (reflect, then scale, shear, rotate, and move), a move by whole pixels
and an elastic displacement (Simard et al. 2003, section 2; Adam 3.1 and 4.3.3). It depends on (seed, pass, example) and
the ranges only, and is computed without functions that round differently from one machine to another, so any data
server makes the same variant.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from adamctl.config.augment import AugmentConfig
from adamctl.kernels.numeric.warp import Warps, node_counts
from adamctl.roles.data.augment.chance import Floats, Indices, Keys, Numbers, keys_of, uniform, uniform_pairs

_ROTATE, _SCALE, _SHEAR, _DOWN, _RIGHT, _REFLECT, _CROP_DOWN, _CROP_RIGHT, _PHASES = range(9)
_BRIGHTNESS, _CONTRAST, _NODES = 9, 10, 16
"""Which draw of an example is for what; these numbers never change, so one setting does not change another's draws."""
_SERIES_TERMS: Final = 14  # the terms left out are below 1e-14 up to 180 degrees
SPLINE_SQUARE: Final = 151 / 315
"""The mean over the phase of the sum of a cubic B-spline's squared weights: the variance it leaves, per axis."""


class WarpRanges(NamedTuple):
    """How far warps go. All draws are uniform and independent; the default is the identity."""

    rotate: float = 0.0
    """Degrees, up to this either way; at most 180."""
    scale: float = 0.0
    """The factor is in 1 - scale .. 1 + scale; below 1."""
    shear: float = 0.0
    """Columns to the right for each row further down, up to this either way."""
    translate: float = 0.0
    """Pixels down and pixels right, fractions too, up to this either way."""
    crop: int = 0
    """Pixels down and pixels right, whole ones, up to this either way."""
    reflect: bool = False
    """Every second image, on average, has left and right swapped."""
    sigma: float = 0.0
    """Pixels: how far displacements are alike, as the standard deviation of Simard's Gaussian."""
    alpha: float = 0.0
    """Simard's alpha: displacements have the standard deviation of alpha * Gaussian * uniform(-1, 1); 0 for none."""


def ranges_of(config: AugmentConfig) -> WarpRanges:
    """Returns what `[data.augment]` says of warps."""
    return WarpRanges(
        config.rotate, config.scale, config.shear, config.translate, config.crop, config.reflect,
        config.elastic.sigma if config.elastic.alpha else 0.0, config.elastic.alpha,
    )  # fmt: skip


def check(ranges: WarpRanges) -> None:
    """Raises ValueError: a range is not one of those that `WarpRanges` allows."""
    limits = {
        "rotate": 180.0, "scale": 1.0, "shear": math.inf, "translate": math.inf, "crop": math.inf, "alpha": math.inf
    }  # fmt: skip
    for name, most in limits.items():
        value = getattr(ranges, name)
        if not (0 <= value <= most and value < math.inf) or (name == "scale" and value == most):
            bound = "" if most == math.inf else f" and {'below' if name == 'scale' else 'at most'} {most:g}"
            raise ValueError(f"{name}: expected at least 0{bound}; found {value}")
    if ranges.alpha and not 0.5 <= ranges.sigma < math.inf:
        raise ValueError(f"sigma: expected at least 0.5 pixels; found {ranges.sigma}")


def draw_warps(
    indices: Indices, seed: int, pass_number: int, ranges: WarpRanges, height: int, width: int
) -> Warps:  # fmt: skip
    """Returns the warps of examples in a pass, for images of this size.

    Args:
        indices: [n], the examples' places in their files, which they keep in every pass.

    Raises:
        ValueError: as `check`.
    """
    check(ranges)
    keys, n = keys_of(indices, seed, pass_number), len(indices)
    drawn = uniform(keys, np.arange(_PHASES))
    matrices = _matrices(drawn, ranges, height, width).astype(np.float32)
    if not ranges.alpha:
        return Warps(matrices, np.empty((n, 2, 0, 0), np.float32), np.zeros((n, 2), np.float32), 1.0)
    spacing = ranges.sigma * math.sqrt(3)
    counts = node_counts(height, width, spacing)
    nodes = uniform_pairs(keys, np.arange(_NODES, _NODES + counts[0] * counts[1]))
    nodes = (2 * nodes - 1) * np.float32(_node_amplitude(ranges.sigma, ranges.alpha))
    phases = uniform_pairs(keys, np.array([_PHASES]))
    return Warps(matrices, nodes.reshape(n, 2, *counts), phases, spacing)


def draw_tones(keys: Keys, brightness: float, contrast: float) -> tuple[Floats, Floats]:
    """Returns (factor, shift) for each example, [n, 1]: values in 0 .. 1 become value * factor + shift.

    Grey, 0.5, is moved by brightness alone (contrast multiplies the distance from it).
    """
    lighter, stronger = (2 * uniform(keys, np.array([_BRIGHTNESS, _CONTRAST])) - 1).T
    factors = 1 + contrast * stronger
    shifts = brightness * lighter + 0.5 * (1 - factors)
    return factors.astype(np.float32)[:, None], shifts.astype(np.float32)[:, None]


# --- warps from numbers ---------------------------------------------------------------------------------------------


def _matrices(drawn: Numbers, ranges: WarpRanges, height: int, width: int) -> Numbers:
    """Returns [n, 2, 3], from a pixel to its place in the source: the inverse of what happens to the image."""
    either_way = 2 * drawn[:, :_REFLECT] - 1
    moves = np.floor(drawn[:, _CROP_DOWN : _CROP_RIGHT + 1] * (2 * ranges.crop + 1)) - ranges.crop
    sine, cosine = _sine_and_cosine(either_way[:, _ROTATE] * ranges.rotate * (math.pi / 180))
    inverse_scale = 1 / (1 + either_way[:, _SCALE] * ranges.scale)
    shear = either_way[:, _SHEAR] * ranges.shear
    mirror = np.where((drawn[:, _REFLECT] < 0.5) & ranges.reflect, -1.0, 1.0)
    matrices = np.empty((len(drawn), 2, 3))
    # Back from the place: turn, then undo the shear, the scale and the reflection.
    matrices[:, 0, 0] = inverse_scale * cosine
    matrices[:, 0, 1] = inverse_scale * -sine
    matrices[:, 1, 0] = mirror * inverse_scale * (sine - shear * cosine)
    matrices[:, 1, 1] = mirror * inverse_scale * (cosine + shear * sine)
    centre = (height - 1) / 2, (width - 1) / 2
    down, right = (
        centre[axis] + either_way[:, move] * ranges.translate + moves[:, axis]
        for axis, move in enumerate((_DOWN, _RIGHT))
    )
    for axis in range(2):
        matrices[:, axis, 2] = centre[axis] - (matrices[:, axis, 0] * down + matrices[:, axis, 1] * right)
    return matrices


def _sine_and_cosine(angles: Numbers) -> tuple[Numbers, Numbers]:
    """Returns both by their series, for -pi .. pi, to 1e-13: libraries' results differ in the last bit."""
    square = angles * angles
    sine, cosine = np.ones_like(angles), np.ones_like(angles)
    for term in range(_SERIES_TERMS, 0, -1):
        sine = 1 - square * sine / ((2 * term) * (2 * term + 1))
        cosine = 1 - square * cosine / ((2 * term - 1) * (2 * term))
    return angles * sine, cosine


def _node_amplitude(sigma: float, alpha: float) -> float:
    """Returns the largest node that gives displacements the standard deviation of alpha * Gaussian * uniform(-1, 1).

    A Gaussian leaves 1 / (2 sqrt(pi) sigma) of independent numbers' standard deviation, a cubic B-spline 151 / 315.
    """
    return alpha / (2 * math.sqrt(math.pi) * sigma) / SPLINE_SQUARE

"""What is left to chance when images are augmented: the warp of an example in a pass, from keys alone.

A warp is an affine map about the image's centre (reflect, then scale, shear, rotate, and move) and an elastic
displacement (Simard et al. 2003, section 2; Adam 3.1 and 4.3.3). It depends on (seed, pass, example) and the ranges
only, and is computed without functions that round differently from one machine to another, so any data server makes
the same variant.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.numeric.mix import KEY_STEP, step_key
from adamctl.kernels.numeric.warp import Numbers, Warps, node_counts

Indices = NDArray[np.int64]

_STREAM: Final = 0x4155_474D << 32  # "AUGM": no place of an example in a pass, which keys of steps have here
_ROTATE, _SCALE, _SHEAR, _DOWN, _RIGHT, _REFLECT, _PHASES, _NODES = 0, 1, 2, 3, 4, 5, 6, 8
"""Which draw of an example is for what; these numbers never change, so one setting does not change another's draws."""
_MANTISSA_BITS: Final = 53
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
    reflect: bool = False
    """Every second image, on average, has left and right swapped."""
    sigma: float = 0.0
    """Pixels: how far displacements are alike, as the standard deviation of Simard's Gaussian."""
    alpha: float = 0.0
    """Simard's alpha: displacements have the standard deviation of alpha * Gaussian * uniform(-1, 1); 0 for none."""


def draw_warps(
    indices: Indices, seed: int, pass_number: int, ranges: WarpRanges, height: int, width: int
) -> Warps:  # fmt: skip
    """Returns the warps of examples in a pass, for images of this size.

    Args:
        indices: [n], the examples' places in their files, which they keep in every pass.

    Raises:
        ValueError: a range is not one of those that `WarpRanges` allows.
    """
    _check(ranges)
    keys = _keys(indices, seed, pass_number)
    spacing = ranges.sigma * math.sqrt(3) if ranges.alpha else 1.0
    counts = node_counts(height, width, spacing) if ranges.alpha else (0, 0)
    drawn = _uniform(keys, np.arange(_NODES + 2 * counts[0] * counts[1]))
    nodes = (2 * drawn[:, _NODES:] - 1).reshape(len(indices), 2, *counts)
    if ranges.alpha:
        nodes *= _node_amplitude(ranges.sigma, ranges.alpha)
    phases = np.ascontiguousarray(drawn[:, _PHASES:_NODES])
    return Warps(_matrices(drawn, ranges, height, width), nodes, phases, spacing)


def _check(ranges: WarpRanges) -> None:
    limits = {"rotate": 180.0, "scale": 1.0, "shear": math.inf, "translate": math.inf, "alpha": math.inf}
    for name, most in limits.items():
        value = getattr(ranges, name)
        if not (0 <= value <= most and value < math.inf) or (name == "scale" and value == most):
            bound = "" if most == math.inf else f" and {'below' if name == 'scale' else 'at most'} {most:g}"
            raise ValueError(f"{name}: expected at least 0{bound}; found {value}")
    if ranges.alpha and not 0.5 <= ranges.sigma < math.inf:
        raise ValueError(f"sigma: expected at least 0.5 pixels; found {ranges.sigma}")


# --- numbers from keys ----------------------------------------------------------------------------------------------


def _keys(indices: Indices, seed: int, pass_number: int) -> NDArray[np.uint64]:
    """Returns a key for each example."""
    start = np.uint64(step_key(seed, pass_number, _STREAM))
    return _scrambled(start + indices.astype(np.uint64) * np.uint64(KEY_STEP))


def _uniform(keys: NDArray[np.uint64], draws: Indices) -> Numbers:
    """Returns [keys, draws]: numbers in 0 <= u < 1, each by its key and its number alone."""
    words = _scrambled(keys[:, None] + (draws.astype(np.uint64) + np.uint64(1)) * np.uint64(KEY_STEP))
    uniform: Numbers = (words >> np.uint64(64 - _MANTISSA_BITS)).astype(np.float64) * 2.0**-_MANTISSA_BITS
    return uniform


def _scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scrambles 64-bit words as SplitMix64 does (Steele et al. 2014, figure 15)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return words ^ (words >> np.uint64(31))


# --- warps from numbers ---------------------------------------------------------------------------------------------


def _matrices(drawn: Numbers, ranges: WarpRanges, height: int, width: int) -> Numbers:
    """Returns [n, 2, 3], from a pixel to its place in the source: the inverse of what happens to the image."""
    either_way = 2 * drawn[:, :_REFLECT] - 1
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
    down, right = (centre[i] + either_way[:, move] * ranges.translate for i, move in enumerate((_DOWN, _RIGHT)))
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

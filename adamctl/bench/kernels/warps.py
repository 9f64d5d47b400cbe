"""Microseconds per image of affine and elastic warps on one thread, drawn and carried out, beside SciPy's.

SciPy makes the same of an image in the usual way: a Gaussian filter over random numbers for each axis, the affine map
added, and the image read at the places by `map_coordinates`.
"""

from __future__ import annotations

import importlib.util
from functools import partial

import numpy as np

from adamctl.bench.kernels.measuring import Call, calls_per_s
from adamctl.kernels.backend import Backend, installed
from adamctl.kernels.numeric.warp import Images, warp
from adamctl.roles.data.augment.drawing import WarpRanges, draw_warps

RANGES = WarpRanges(rotate=10, scale=0.1, translate=2, sigma=4, alpha=34)
SEED, PASS = 1, 0


def measure_warps(size: int, examples: int, rounds: int, seconds: float) -> dict[str, float | None]:
    """Returns microseconds per image of `size` x `size` by each implementation and by SciPy, the least of all rounds.

    The names are `numpy_us`, `numba_us` and `scipy_us`; None for what is not installed. Rounds take turns, so that a
    busy machine slows all alike.

    Args:
        examples: how many images a call of ours warps.
        seconds: how long each measurement lasts.
    """
    images = np.random.default_rng(1).random((examples, size, size, 1), np.float32)
    backends: tuple[Backend, ...] = ("numpy", "numba")
    calls: dict[str, tuple[int, Call]] = {
        name: (examples, partial(_ours, images.copy(), name)) for name in backends if name in installed()
    }
    if importlib.util.find_spec("scipy") is not None:
        calls["scipy"] = 1, _scipys(images[0, ..., 0])
    least: dict[str, float | None] = {f"{name}_us": None for name in (*backends, "scipy")}
    for _, call in calls.values():
        call()
    for _ in range(rounds):
        for name, (count, call) in calls.items():
            taken_us = 1e6 / (calls_per_s([call], seconds) * count)
            before = least[f"{name}_us"]
            least[f"{name}_us"] = taken_us if before is None else min(before, taken_us)
    return least


def _ours(images: Images, backend: Backend) -> None:
    """Draws the warps of all images and carries them out, in place."""
    n, height, width, _ = images.shape
    warp(images, draw_warps(np.arange(n), SEED, PASS, RANGES, height, width), 0.0, backend)


def _scipys(image: Images) -> Call:
    """Returns the call that warps one image [height, width]."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    random, shape = np.random.default_rng(SEED), image.shape
    pixels = np.indices(shape).astype(np.float64)
    matrix = draw_warps(np.arange(1), SEED, PASS, RANGES, *shape).matrices[0].astype(np.float64)

    def carry_out() -> Images:
        noise = random.uniform(-1, 1, (2, *shape))
        places = np.tensordot(matrix[:, :2], pixels, 1) + matrix[:, 2, None, None]
        places += RANGES.alpha * gaussian_filter(noise, (0, RANGES.sigma, RANGES.sigma), mode="constant")
        warped: Images = map_coordinates(image, places, order=1, mode="grid-constant")
        return warped

    return carry_out

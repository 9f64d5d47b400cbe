"""Random numbers of an example in a pass, from keys alone: the same on every data server, machine and release.

Every example of a pass has a key, of (seed, pass, place in its file), and every draw a number; no draw depends on
which others are made.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.numeric.mix import KEY_STEP, scrambled, step_key

Indices = NDArray[np.int64]
Keys = NDArray[np.uint64]
Numbers = NDArray[np.float64]
Floats = NDArray[np.float32]

_STREAM: Final = 0x4155_474D << 32  # "AUGM": no place of an example in a pass, which keys of steps have here
_MANTISSA_BITS: Final = 53
HALF_BITS: Final = 24
"""Of the numbers of which one word gives two: all that float32 can hold."""


def keys_of(indices: Indices, seed: int, pass_number: int, user: str = "") -> Keys:
    """Returns a key for each example, [n]. Each user, such as another package's augmenter, has keys of its own."""
    start = np.uint64(step_key(seed, pass_number, _STREAM | crc32(user.encode())))
    return scrambled(start + indices.astype(np.uint64) * np.uint64(KEY_STEP))


def uniform(keys: Keys, draws: Indices) -> Numbers:
    """Returns [keys, draws]: numbers in 0 <= u < 1, each by its key and its number alone."""
    return (_words(keys, draws) >> np.uint64(64 - _MANTISSA_BITS)).astype(np.float64) * 2.0**-_MANTISSA_BITS


def uniform_pairs(keys: Keys, draws: Indices, kernels: str | None = None) -> Floats:
    """Returns [keys, 2 * draws]: two numbers in 0 <= u < 1 of each draw, float32; the same with any `kernels`."""
    compiled = compiled_if(choose(kernels), "warp")
    if compiled is not None:
        out = np.empty((len(keys), 2 * len(draws)), np.float32)
        compiled.uniform_pairs(keys, np.ascontiguousarray(draws, np.int64), out)
        return out
    words = _words(keys, draws)
    halves = np.stack((words >> np.uint64(64 - HALF_BITS), (words << np.uint64(32)) >> np.uint64(64 - HALF_BITS)), -1)
    return halves.reshape(len(keys), -1).astype(np.float32) * np.float32(2.0**-HALF_BITS)


def _words(keys: Keys, draws: Indices) -> Keys:
    return scrambled(keys[:, None] + (draws.astype(np.uint64) + np.uint64(1)) * np.uint64(KEY_STEP))

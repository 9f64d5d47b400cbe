"""How many sums a convolution's inner loops hold in vector registers, and how an axis is cut into such pieces.

A register tile is `pixels` x `vectors` vectors of `lanes` float32. Every number it reads serves a whole row or column
of the tile, so that with a tile of 24 vectors the multiply-adds, not the reads, set the speed. Thirty-two vector
registers of 16 float32 (AVX-512) or sixteen of 8 (AVX2) hold the tile, one row of weights and one pixel. Eight
float32 is the unit: an axis is padded to whole units, and odd units go to vectors of 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UNIT = 8  # float32 in the shortest vector: `adamctl.kernels.compiled.vectors.LANES`
WIDEST = 64  # float32 in the widest panel; arrays that panels read keep this many spare elements at their end
PIXELS_MAX = 8
_WIDE_PIXELS = {1: 8, 2: 8, 3: 8, 4: 6}
_NARROW_PIXELS = {1: 8, 2: 6, 3: 4}


def round_up(size: int, multiple: int = UNIT) -> int:
    """Returns the next multiple at or above `size`."""
    return -(-size // multiple) * multiple


def panels(size: int, wide: bool) -> NDArray[np.int64]:
    """Returns the panels that cover an axis of `size` float32, rows of (first element, vectors, lanes, most pixels).

    Panels are adjacent and together cover `round_up(size)`. `wide`: the machine has vectors of 16.
    """
    units = -(-size // UNIT)
    pieces: list[tuple[int, int]] = []
    if not wide:
        pieces = [(vectors, UNIT) for vectors in _balanced(units, 3)]
    else:
        odd = 0 if units % 2 == 0 else min(units, 3)
        even = units - odd
        pieces = [(even, UNIT)] if even == 2 and not odd else [(v, 2 * UNIT) for v in _balanced(even // 2, 4)]
        pieces += [(odd, UNIT)] if odd else []
    most = _WIDE_PIXELS if wide else _NARROW_PIXELS
    rows, first = [], 0
    for vectors, lanes in pieces:
        rows.append((first, vectors, lanes, most[vectors]))
        first += vectors * lanes
    return np.array(rows, np.int64).reshape(-1, 4)


def _balanced(count: int, most: int) -> list[int]:
    """Cuts `count` into as few parts as possible of at most `most`, the larger ones first."""
    parts = -(-count // most)
    return [count // parts + (part < count % parts) for part in range(parts)]

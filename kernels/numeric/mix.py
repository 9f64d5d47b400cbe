"""A hash of 32-bit words, which decides which inputs dropout keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
FACTORS = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
SHIFTS = np.uint32(16), np.uint32(15), np.uint32(16)
WORD_BITS = 32


def mix(values: Words, scratch: Words) -> None:
    """Scrambles 32-bit words in place: each input bit changes about half of the result's bits.

    Alternates shifts and odd factors: the finaliser of MurmurHash3 with the constants that Wellons found to have less
    bias ("Prospecting for hash functions", 2018).
    """
    for shift, factor in zip(SHIFTS, (*FACTORS, None), strict=True):
        np.right_shift(values, shift, out=scratch)
        np.bitwise_xor(values, scratch, out=values)
        if factor is not None:
            np.multiply(values, factor, out=values)

"""A hash of 32-bit words, which decides which inputs dropout keeps, and the key of a step's chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
FACTORS = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
SHIFTS = np.uint32(16), np.uint32(15), np.uint32(16)
WORD_BITS = 32
KEYS = 2**64
KEY_STEP = 0x9E3779B97F4A7C15


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


def step_key(seed: int, pass_number: int, first: int) -> int:
    """Returns the key, below 2^64, that decides what is left to chance in the step of a batch.

    Whichever thread or worker trains on the batch, it makes the same step. Each number is added to what the ones before
    gave and scrambled as SplitMix64 does (Steele et al. 2014, section 3).

    Args:
        seed: the experiment's.
        pass_number, first: the batch's pass, and the place of its first example in that pass.
    """
    key = 0
    for number in (seed, pass_number, first):
        key = (key + number + KEY_STEP) % KEYS
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 % KEYS
        key = (key ^ key >> 27) * 0x94D049BB133111EB % KEYS
        key ^= key >> 31
    return key


def set_key(words: Words, key: int) -> None:
    """Writes a key into two words."""
    words.view(np.uint64)[0] = key

"""Hashes: of 32-bit words, which decide what dropout keeps, and of 64-bit words, which are keys of other chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
FACTORS = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
SHIFTS = np.uint32(16), np.uint32(15), np.uint32(16)
WORD_BITS = 32
KEYS = 2**64
KEY_STEP = 0x9E3779B97F4A7C15
KEY_FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


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
        key = (key ^ key >> 30) * KEY_FACTORS[0] % KEYS
        key = (key ^ key >> 27) * KEY_FACTORS[1] % KEYS
        key ^= key >> 31
    return key


def scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns 64-bit words scrambled as SplitMix64 does (Steele et al. 2014, figure 15): each a key for chance."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(KEY_FACTORS[0])
    words = (words ^ (words >> np.uint64(27))) * np.uint64(KEY_FACTORS[1])
    return words ^ (words >> np.uint64(31))


def set_key(words: Words, key: int) -> None:
    """Writes a key into two words."""
    words.view(np.uint64)[0] = key

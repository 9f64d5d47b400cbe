"""Words are scrambled well, and two different ones never to the same."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.numeric.mix import WORD_BITS, Words, mix


def mixed(values: Words) -> Words:
    result = values.copy()
    mix(result, np.zeros_like(result))
    return result


def test_different_words_stay_different() -> None:
    words = np.arange(1 << 16, dtype=np.uint32)
    for values in (words, words << np.uint32(16)):
        assert len(np.unique(mixed(values))) == len(values)


def test_each_bit_changes_about_half_of_the_result() -> None:
    words = np.arange(1 << 14, dtype=np.uint32)
    before = mixed(words)
    for bit in range(WORD_BITS):
        changed = before ^ mixed(words ^ np.uint32(1 << bit))
        share = np.unpackbits(changed.view(np.uint8)).mean()
        assert abs(share - 0.5) < 0.02, bit


def test_the_result_is_that_of_plain_numbers() -> None:
    expected = []
    for value in (0, 1, 12345, 2**32 - 1):
        value = (value ^ value >> 16) * 0x7FEB352D % 2**32
        value = (value ^ value >> 15) * 0x846CA68B % 2**32
        expected.append(value ^ value >> 16)
    assert mixed(np.array([0, 1, 12345, 2**32 - 1], np.uint32)).tolist() == expected

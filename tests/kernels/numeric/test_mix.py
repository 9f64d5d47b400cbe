"""Words are scrambled well, and two different ones never to the same."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.numeric.mix import KEY_STEP, WORD_BITS, Words, mix, scrambled, step_key


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


def test_a_batch_has_a_key_of_its_own_and_always_the_same() -> None:
    batches = [(seed, number, first) for seed in (0, 1, 2**40) for number in range(4) for first in range(0, 6400, 32)]
    batches += [(-1, 0, 0), (0, 0, 2**40), (0, 2**40, 0)]
    keys = [step_key(*batch) for batch in batches]
    assert len({key >> WORD_BITS for key in keys}) == len({key % 2**WORD_BITS for key in keys}) == len(batches)
    assert all(0 <= key < 2**64 for key in keys)
    assert step_key(3, 1, 64) == 0xF1F45898DBAA4A03, (
        "runs that go on, and replicas of other versions, make the same masks"
    )


def test_each_bit_of_a_batch_changes_about_half_of_its_key() -> None:
    before = step_key(5, 3, 640)
    for batch in [(5 ^ 1 << bit, 3, 640) for bit in range(64)] + [(5, 3, 640 ^ 1 << bit) for bit in range(32)]:
        assert 12 <= (before ^ step_key(*batch)).bit_count() <= 52  # of 64, five standard deviations


def test_words_are_scrambled_as_splitmix64_does() -> None:
    """The first numbers of its generator from seed 0, as published with it."""
    counters = np.arange(1, 4, dtype=np.uint64) * np.uint64(KEY_STEP)
    assert scrambled(counters).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]

"""Sums of whole numbers tell what was applied; a shard between two versions is found."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.bench.ps.job import (
    FactorsSize,
    check_factors,
    check_weights,
    check_whole,
    factors,
    factors_record,
    layout_of,
    pattern,
    weights_record,
)
from adamctl.errors import RunFailedError
from adamctl.kernels.numeric import convert

LAYOUT = layout_of(weights_record(1_000_000, 1 << 16, 1))


@pytest.mark.parametrize(("model", "block", "servers"), [(100_000_000, 1 << 20, 1), (100_000_000, 1 << 20, 4),
                                                         (10_000_000, 1 << 20, 4), (50_000_000, 1 << 22, 1),
                                                         (1_000_000, 1 << 12, 2)])  # fmt: skip
def test_every_block_is_a_shard(model: int, block: int, servers: int) -> None:
    layout = layout_of(weights_record(model, block, servers))
    assert {shard.size * 4 for shard in layout.shards} == {block}
    assert abs(len(layout.shards) * block - model) <= block / 2


def test_the_right_sum_passes_and_one_wrong_number_does_not() -> None:
    flat = pattern(LAYOUT.flat_size) * np.float32(7)
    check_weights(LAYOUT, flat, 7)
    check_whole(LAYOUT, flat, every_element=True)
    flat[LAYOUT.shards[3].offset + 5] += 1
    with pytest.raises(RunFailedError, match="shard 3"):
        check_weights(LAYOUT, flat, 7)


@pytest.mark.parametrize("every_element", [False, True])
def test_a_torn_shard_is_found(every_element: bool) -> None:
    flat = pattern(LAYOUT.flat_size) * np.float32(7)
    shard = LAYOUT.shards[2]
    half = slice(shard.offset + shard.size // 2, shard.offset + shard.size)
    flat[half] = pattern(LAYOUT.flat_size)[half] * np.float32(8)
    with pytest.raises(RunFailedError, match="torn"):
        check_whole(LAYOUT, flat, every_element=every_element)


def test_sums_that_float32_cannot_count_are_refused() -> None:
    with pytest.raises(RunFailedError, match="--seconds"):
        check_weights(LAYOUT, np.zeros(LAYOUT.flat_size, np.float32), 1 << 22)


def test_factors() -> None:
    size = FactorsSize(32, 16, 8)
    layout = layout_of(factors_record(size, 1))
    errors, activations = factors(size)
    flat = np.zeros(layout.flat_size, np.float32)
    flat[: 32 * 16] = 3 * (errors.T @ activations).reshape(-1)
    check_factors(layout, flat, size, 3)
    flat[9] += 1
    with pytest.raises(RunFailedError, match="weight 9"):
        check_factors(layout, flat, size, 3)
    assert size.updates == 8 * 32 * 16


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_values_that_came_rounded_are_whole_and_torn_ones_still_found(name: str) -> None:
    narrow, flat = np.empty(LAYOUT.flat_size, convert.NARROW[name]), np.empty(LAYOUT.flat_size, np.float32)
    convert.narrowed(pattern(LAYOUT.flat_size) * np.float32(1237), narrow)
    convert.widened(narrow, flat)
    check_whole(LAYOUT, flat, every_element=True, rounded=True)
    shard = LAYOUT.shards[2]
    flat[shard.offset + shard.size // 2 : shard.offset + shard.size] *= 1.1
    with pytest.raises(RunFailedError, match="torn"):
        check_whole(LAYOUT, flat, every_element=False, rounded=True)

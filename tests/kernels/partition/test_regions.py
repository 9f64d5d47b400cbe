"""Blocks move to their place, natively as by numpy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from adamctl.kernels import native
from adamctl.kernels.native_function import compile_calls
from adamctl.kernels.partition.regions import BlockMove, Box, Held, box_of, extents, intersection, whole_box
from tests.kernels.kernel_checks import BACKENDS

IMAGE: list[tuple[Box, Box]] = [
    (((0, 4), (0, 5), (0, 3)), ((2, 6), (0, 5), (0, 3))),  # rows, with a halo
    (((0, 6), (0, 5), (0, 3)), ((0, 6), (0, 5), (1, 2))),  # a map of all
    (((1, 5), (0, 5), (0, 4)), ((0, 3), (0, 5), (2, 9))),  # rows of one, maps of the other
    (((0, 6), (0, 5), (0, 3)), ((0, 6), (0, 5), (0, 3))),
    (((3, 4), (0, 5), (0, 3)), ((3, 5), (0, 5), (1, 3))),
    (((2, 5),), ((0, 9),)),
    (((0, 9),), ((0, 9),)),
]


def held(box: Box, seed: int, batch: int = 3) -> Held:
    generator = np.random.default_rng(seed)
    return Held(generator.integers(-9, 9, (batch, *extents(box))).astype(np.float32), box)


@pytest.mark.parametrize(("one", "other"), IMAGE)
@pytest.mark.parametrize(("adds", "batch"), list(product((False, True), (1, 3))))
def test_a_block_moves_to_its_place(one: Box, other: Box, adds: bool, batch: int) -> None:
    common = intersection(one, other)
    assert common is not None
    target, source = held(one, 1, batch), held(other, 2, batch)
    before, expected = target.array.copy(), target.array.copy()
    for place in product(range(batch), *(range(*part) for part in common)):
        to = (place[0], *(index - first for index, (first, _) in zip(place[1:], one, strict=True)))
        at = (place[0], *(index - first for index, (first, _) in zip(place[1:], other, strict=True)))
        expected[to] = expected[to] * adds + source.array[at]
    move = BlockMove(target, source, common, adds)
    move.make()
    np.testing.assert_array_equal(target.array, expected)
    if "numba" not in BACKENDS or not native.can_compile():
        return
    target.array[...] = before
    calls = move.native("numba")
    assert calls is not None and compile_calls(calls)(0, 1) == 0
    np.testing.assert_array_equal(target.array, expected)


def test_regions_that_only_touch_have_nothing_in_common() -> None:
    assert intersection(((0, 3), (0, 2)), ((3, 5), (0, 2))) is None
    assert intersection(((0, 4), (0, 2)), ((3, 5), (0, 2))) == ((3, 4), (0, 2))
    assert box_of((slice(None), slice(1, 3)), (4, 5)) == ((0, 4), (1, 3))
    assert whole_box((4, 5)) == ((0, 4), (0, 5))


def test_without_compiled_kernels_numpy_moves_it() -> None:
    one = held(((0, 2),), 1)
    assert BlockMove(one, one, ((0, 2),)).native("numpy") is None


def test_a_block_of_columns_is_refused() -> None:
    """Nothing is cut along columns."""
    wide, part = held(((0, 4), (0, 5), (0, 3)), 1), held(((0, 4), (1, 3), (0, 2)), 2)
    with pytest.raises(ValueError, match="cut along rows and maps"):
        BlockMove(wide, part, ((0, 4), (1, 3), (0, 2))).places()

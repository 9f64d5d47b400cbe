"""A bucket's arrays lie in one piece of memory, each on its own cache lines, and say the same as before."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.roles.ps.memory import side_by_side


@pytest.mark.parametrize("sizes", [(1, 17, 300), (0, 5), (), (700_000, 3)])
def test_copies_lie_one_after_another(sizes: tuple[int, ...]) -> None:
    arrays = [np.random.default_rng(number).random(size, np.float32) for number, size in enumerate(sizes)]
    copies = side_by_side(arrays)
    assert len(copies) == len(arrays)
    end = 0
    for array, copy in zip(arrays, copies, strict=True):
        assert np.array_equal(array, copy) and copy.flags.writeable and copy.flags.c_contiguous
        if array.size:
            address = copy.__array_interface__["data"][0]
            assert address % 64 == 0 and address >= end
            end = address + copy.nbytes
            copy += 1  # nobody else's
    assert all(np.array_equal(array + 1, copy) for array, copy in zip(arrays, copies, strict=True))

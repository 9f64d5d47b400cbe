"""Finding NaN and infinity anywhere in an array."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.numeric.finite import all_finite
from tests.kernels.kernel_checks import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 15, 4096, 70001])
def test_one_bad_element_anywhere_is_found(backend, bad, size):
    values = np.full(size, np.finfo(np.float32).max, np.float32)
    assert all_finite(values, backend)
    for place in {0, size // 2, size - 1}:
        values[place] = bad
        assert not all_finite(values, backend)
        values[place] = -1e-45


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_shaped_and_read_only_arrays_are_fine(backend):
    assert all_finite(np.zeros(0, np.float32), backend)
    values = np.zeros((3, 4), np.float32)
    values.flags.writeable = False
    assert all_finite(values, backend)
    assert all_finite(np.frombuffer(bytes(40), np.float32), backend)

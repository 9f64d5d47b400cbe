"""Whitening over a window: its definition, gradients and parts."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.custom.whiten import Whiten
from adamctl.kernels.layers.custom import Custom
from adamctl.kernels.slicing import OutputSlice
from adamctl.model.custom.resolved import resolved
from tests.kernels.kernel_checks import check_gradients, check_slices, run

CASES = {"small": (Whiten(3), (5, 4, 2)), "wide": (Whiten(5, 0.1), (7, 4, 2)), "beyond": (Whiten(9), (4, 3, 1))}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def build(case):
    return lambda backend: Custom(resolved(*case), "whiten1", backend)


@cases
def test_it_follows_the_equations(case) -> None:
    layer, (height, width, maps) = case
    given, half = run(build(case)("numpy"), 2, seed=2), layer.size // 2
    for n, y, x, c in np.ndindex(2, height, width, maps):
        window = given.inputs[n, max(y - half, 0) : y + half + 1, max(x - half, 0) : x + half + 1, c].astype(float)
        centred = given.inputs[n, y, x, c] - window.mean()
        expected = given.weights[0][c] * centred / np.sqrt(((window - window.mean()) ** 2).mean() + layer.epsilon)
        assert given.outputs[n, y, x, c] == pytest.approx(expected, abs=2e-5)


@cases
def test_gradients_are_right(case) -> None:
    check_gradients(build(case))


@cases
def test_parts_make_the_whole(case) -> None:
    rows = case[1][0]
    check_slices(build(case), [OutputSlice("rows", 0, 1), OutputSlice("rows", 1, 3), OutputSlice("rows", 3, rows)])


def test_a_size_without_a_centre_is_refused() -> None:
    with pytest.raises(ValueError, match="odd size"):
        Whiten(4)

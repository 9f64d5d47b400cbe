"""How an axis is cut into panels of vectors."""

from __future__ import annotations

import pytest

from adamctl.kernels.tiling import UNIT, WIDEST, panels, round_up


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("size", range(1, 200))
def test_panels_cover_the_axis_side_by_side(size, wide):
    end = 0
    for first, vectors, lanes, _ in panels(size, wide):
        assert first == end
        end += vectors * lanes
    assert end == round_up(size)


@pytest.mark.parametrize(("wide", "registers"), [(False, 16), (True, 32)])
@pytest.mark.parametrize("size", range(1, 200))
def test_a_panel_and_its_tile_fit_the_registers(size, wide, registers):
    for _, vectors, lanes, pixels in panels(size, wide):
        assert lanes == UNIT or (wide and lanes == 2 * UNIT)
        assert vectors * lanes <= WIDEST
        assert vectors * pixels + vectors + 1 <= registers


def test_long_axes_are_cut_into_wide_panels_of_nearly_one_size():
    assert [tuple(panel) for panel in panels(180, wide=True)] == [
        (0, 4, 16, 6), (64, 3, 16, 8), (112, 3, 16, 8), (160, 3, 8, 8),
    ]  # fmt: skip
    assert [tuple(panel) for panel in panels(20, wide=False)] == [(0, 3, 8, 4)]

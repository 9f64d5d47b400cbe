"""Slices are checked before anything is computed."""

import pytest

from adamctl.kernels.slicing import OutputSlice, check_slice, halo, region_shape


def test_a_region_of_a_shape() -> None:
    assert region_shape((7, 5, 3), (slice(2, 6), slice(None), slice(0, 1))) == (4, 5, 1)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (OutputSlice("units", 0, 1), "expected a slice of rows or maps; found one of units"),
        (OutputSlice("rows", 2, 2), "expected rows within 0 to 4; found 2 to 2"),
        (OutputSlice("maps", 0, 4), "expected maps within 0 to 3; found 0 to 4"),
    ],
)
def test_a_slice_that_is_not_one_of_the_layer_is_refused(part: OutputSlice, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_slice(part, (4, 5, 3), ("rows", "maps"), "Pool")


@pytest.mark.parametrize(
    ("windows", "pixels", "zeros"),
    [((0, 1), (0, 2), (1, 0)), ((1, 3), (1, 6), (0, 0)), ((3, 4), (5, 7), (0, 1)), ((0, 4), (0, 7), (1, 1))],
)
def test_windows_read_their_halo_and_the_zeros_that_lie_outside(windows, pixels, zeros) -> None:
    """Windows of 3, 2 apart, over 7 pixels with a zero on either side."""
    assert halo(*windows, size=7, window=3, stride=2, before=1) == (slice(*pixels), zeros)

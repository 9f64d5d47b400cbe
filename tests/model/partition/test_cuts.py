"""A user's cut is completed with even boundaries, or refused with what is wrong and what to do."""

from __future__ import annotations

import msgspec
import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, Layer, Local2D, LocalContrastNorm, MaxPool2D, Model, Softmax
from adamctl.model.partition.cuts import Cut, complete
from adamctl.model.partition.stages import Stage, stages_of


def stage_of(*layers: Layer) -> Stage:
    return stages_of(Model((12, 12, 4), (*layers, Softmax(10))))[0]


@pytest.mark.parametrize(
    ("layer", "cut", "partitions", "wanted"),
    [
        (Conv2D(8, 3), Cut("rows"), 3, Cut("rows", (3, 6))),
        (Conv2D(8, 3), Cut("rows", (0, 10)), 3, Cut("rows", (0, 10))),
        (Conv2D(8, 3), Cut("maps"), 3, Cut("maps", (2, 5))),
        (Conv2D(8, 3, groups=4), Cut("groups"), 3, Cut("maps", (2, 4))),
        (Conv2D(8, 3, groups=4), Cut("groups", (1, 3)), 3, Cut("maps", (2, 6))),
        (Conv2D(8, 3, groups=4), Cut("maps"), 3, Cut("maps", (2, 4))),
        (Conv2D(8, 3, groups=2), Cut("maps"), 3, Cut("maps", (4, 6))),
        (Conv2D(8, 3, groups=2), Cut("maps"), 4, Cut("maps", (2, 4, 6))),
        (Dense(10), Cut("units"), 4, Cut("units", (2, 5, 7))),
        (Dense(10), Cut(whole=2), 4, Cut(whole=2)),
        (LocalContrastNorm(3), Cut("rows"), 2, Cut("rows", (6,))),
    ],
)
def test_a_cut_without_boundaries_is_even(layer: Layer, cut: Cut, partitions: int, wanted: Cut) -> None:
    assert complete(stage_of(layer), cut, partitions) == wanted


def test_a_convolution_is_cut_at_its_pooled_rows() -> None:
    stage = stage_of(Conv2D(8, 3), MaxPool2D(2))
    assert complete(stage, Cut("rows"), 2) == Cut("rows", (2,))
    with pytest.raises(ConfigurationError, match="boundaries within its 5 rows"):
        complete(stage, Cut("rows", (6,)), 2)


@pytest.mark.parametrize(
    ("layer", "cut", "message"),
    [
        (Conv2D(8, 3), Cut("units"), "partition.conv2d1: found a cut by units; expected rows, maps or whole"),
        (
            Dense(9),
            Cut("rows"),
            "partition.dense1: found a cut by rows; expected units or whole: its outputs are units",
        ),
        (Conv2D(8, 3), Cut("groups"), "found a cut by groups; expected rows, maps or whole"),
        (Local2D(8, 3), Cut("maps"), "expected rows or whole: the parameters of a map do not lie together"),
        (Conv2D(8, 3), Cut("rows", (4,)), r"expected 2 boundaries for 3 partitions; found 1: \[4\]"),
        (Conv2D(8, 3), Cut("rows", (4, 11)), r"boundaries within its 10 rows; found \[4, 11\]"),
        (Conv2D(8, 3), Cut("rows", (-1, 3)), r"boundaries within its 10 rows; found \[-1, 3\]"),
        (Conv2D(8, 3), Cut("rows", (6, 3)), r"boundaries in ascending order; found \[6, 3\]"),
        (Conv2D(8, 3, groups=2), Cut("maps", (2, 7)), "maps of whole groups of 4, or of one group; found 2 to 7"),
        (Conv2D(8, 3, groups=2), Cut("groups"), "found 3 partitions for 2 groups; expected at most 2; use fewer"),
        (Dense(2), Cut("units"), "found 3 partitions for 2 units; expected at most 2"),
        (Dense(9), Cut(whole=3), "expected whole = a partition from 0 to 2; found 3"),
        (Dense(9), Cut(), "expected whole = a partition from 0 to 2; found no partition"),
        (Dense(9), Cut(at=(3, 6)), "found at without axis"),
        (Dense(9), Cut("units", whole=1), "found both whole and axis"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(layer: Layer, cut: Cut, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        complete(stage_of(layer), cut, 3)


def test_a_cut_is_read_from_a_table_and_from_a_list() -> None:
    assert msgspec.convert({"axis": "units", "at": [3, 5]}, Cut) == Cut("units", [3, 5]) == Cut("units", (3, 5))  # type: ignore[arg-type]
    assert {Cut("units", [3, 5]), Cut("units", (3, 5))} == {Cut("units", (3, 5))}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cut", "words"),
    [(Cut("rows", (3, 6)), "rows at 3, 6"), (Cut(whole=1), "whole in 1"), (Cut("units", ()), "units at ")],
)
def test_a_cut_in_words(cut: Cut, words: str) -> None:
    assert str(cut) == words

"""Rounds and seeds become points and outcomes by arithmetic that anyone can follow."""

from __future__ import annotations

from math import inf, sqrt

import pytest

from adamctl.bench.figures.figure import Judged, Point
from adamctl.bench.figures.judging import above, at_least, at_most, between, mean_of, median_point, near, paired


def test_a_mean_has_its_standard_error_and_extremes() -> None:
    found = mean_of([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high, found.seeds) == (2.0, 1.0, 3.0, 3)
    assert found.error == pytest.approx(1 / sqrt(3))
    assert found.point(5.0) == Point(5.0, 2.0, 2.0 - found.error, 2.0 + found.error)
    assert mean_of([4.0]).error == inf and mean_of([4.0]).point(1.0) == Point(1.0, 4.0)


def test_methods_are_compared_seed_by_seed() -> None:
    found = paired([10.0, 20.0, 30.0], [9.0, 19.0, 29.0])
    assert (found.value, found.error) == (1.0, 0.0)
    with pytest.raises(ValueError, match="zip"):
        paired([1.0], [1.0, 2.0])


def test_the_median_of_rounds_counts() -> None:
    assert median_point(2.0, [5.0, 1.0, 2.0]) == Point(2.0, 2.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("judged", "outcome"),
    [
        (at_least("speed", 1.9, 1.9), "met"),
        (at_least("speed", 1.89, 1.9), "missed"),
        (at_most("share", 0.32, 0.32), "met"),
        (at_most("share", 0.33, 0.32), "missed"),
        (between("peak", 4, 4, 16), "met"),
        (between("peak", 17, 4, 16), "missed"),
        (above("gain", mean_of([0.1, 0.2, 0.3]), 0.0), "met"),
        (above("gain", mean_of([-0.1, -0.2, -0.3]), 0.0), "missed"),
        (above("gain", mean_of([-0.1, 0.2]), 0.0), "not settled"),
        (above("gain", mean_of([0.1]), 0.0), "not settled"),
        (near("planned", [1.0, 0.9, 1.11], 0.1, 0.6), "met"),
        (near("planned", [1.0, 0.9, 1.11], 0.1), "missed"),
        (near("planned", [], 0.1), "missed"),
    ],
)
def test_a_bar_is_met_at_its_limit_and_missed_beyond(judged: Judged, outcome: str) -> None:
    assert judged.outcome == outcome


def test_a_bar_tells_what_was_found() -> None:
    assert at_least("two threads over one", 1.876, 1.9, " times") == Judged(
        "two threads over one: at least 1.9 times", "1.876 times", "missed"
    )
    assert near("planned", [1.0, 0.7], 0.2).found == "1 of 2, the furthest at 0.7"


def test_a_bar_that_is_missed_by_little_is_not_shown_at_its_limit() -> None:
    assert at_least("two threads over one", 1.8976, 1.9).found == "1.898"
    assert above("ratio", mean_of([1.0039, 1.0041]), 1.0).found == "1.004 ± 0.0001"
    assert near("planned", [1.204], 0.2).found == "0 of 1, the furthest at 1.204"

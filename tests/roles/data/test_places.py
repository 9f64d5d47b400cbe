"""Places in memory: kept by the first that come, given away only by those that a server does not own any more."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adamctl.roles.data.sets.places import Places


def test_the_first_that_come_have_places_and_keep_them() -> None:
    places = Places(10, 3)
    assert places.claim(np.array([7, 2, 7]))[0].tolist() == [1, 0, 1]
    assert places.claim(np.array([5, 2, 9]))[0].tolist() == [2, 0, -1]
    assert places.claim(np.arange(10))[0].tolist() == [-1, -1, 0, -1, -1, 2, -1, 1, -1, -1]
    assert not places.turns.any()


def test_what_is_not_owned_any_more_gives_way_when_there_is_no_free_place() -> None:
    places = Places(10, 4)
    places.claim(np.array([0, 1, 2]))
    places.own(np.arange(10) >= 2)
    assert places.claim(np.array([5]))[1].tolist() == [], "there is a free one"
    found, taken = places.claim(np.array([6, 7, 8]))
    assert sorted(found.tolist()) == [-1, 0, 1] and sorted(taken.tolist()) == [0, 1]
    assert places.of[:2].tolist() == [-1, -1] and places.of[2] == 2 and places.turns.tolist() == [1, 1, 0, 0]


def test_what_is_not_owned_takes_no_place_from_anybody() -> None:
    places = Places(10, 2)
    places.claim(np.array([0, 1]))
    places.own(np.arange(10) == 9)
    assert places.claim(np.array([5]))[0].tolist() == [-1]
    assert places.claim(np.array([9]))[0].tolist() == [1]


@given(st.lists(st.tuples(st.lists(st.integers(0, 19), min_size=1, max_size=8), st.integers(0, 7)), max_size=40))
def test_no_two_examples_share_a_place(steps: list[tuple[list[int], int]]) -> None:
    places = Places(20, 6)
    for indices, owner in steps:
        if owner < 4:
            places.own(np.arange(20) % 4 == owner)
        found, taken = places.claim(np.array(indices))
        assert found.tolist() == places.of[indices].tolist()
        held = places.of[places.of >= 0]
        assert len(set(held.tolist())) == len(held) <= 6 and set(taken.tolist()) <= set(held.tolist())

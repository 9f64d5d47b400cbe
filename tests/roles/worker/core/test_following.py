"""Whether threads wait for what they have pushed: the way there and back beside the steps between two pushes."""

from __future__ import annotations

import pytest

from adamctl.roles.worker.core.following import ALONE_AFTER, SAMPLES, SHARE_MAX, Following


def measured(step_s: float, trips_s: list[float]) -> Following:
    following = Following()
    for trip_s in trips_s:
        following.stepped(step_s)
        following.came_back(trip_s)
    return following


def test_threads_wait_before_anything_was_measured() -> None:
    assert Following().waits


@pytest.mark.parametrize(("share", "waits"), [(0.5, True), (1.0, True), (1.1, False), (100.0, False)])
def test_threads_wait_where_it_takes_at_most_that_share_of_the_time_between_pushes(share: float, waits: bool) -> None:
    assert measured(0.01, [0.01 * SHARE_MAX * share] * SAMPLES).waits is waits


def test_a_few_that_were_held_up_change_nothing_and_many_do_in_both_directions() -> None:
    late = SAMPLES // 2
    assert measured(0.01, [0.0] * (SAMPLES - late) + [1.0] * late).waits
    assert not measured(0.01, [0.0] * SAMPLES + [1.0] * (late + 1)).waits
    assert measured(0.01, [1.0] * SAMPLES + [0.0] * (late + 1)).waits


def test_nobody_waits_after_the_first_pushes_of_the_job() -> None:
    following = Following(first_pushes=3)
    for applied, waits in [(0.0, True), (2.5, True), (3.0, False), (99.0, False)]:
        following.fetched(others=True, applied=applied)
        assert following.waits is waits and following.is_near


def test_who_applies_its_own_gradients_has_nothing_to_wait_for_while_nobody_else_pushes() -> None:
    alone, dependent = Following(applies_locally=True), Following()
    for following in (alone, dependent):
        for _ in range(ALONE_AFTER - 1):
            following.fetched(others=False)
            assert following.waits
        following.fetched(others=False)
    assert not alone.waits and dependent.waits
    alone.fetched(others=True)
    assert alone.waits

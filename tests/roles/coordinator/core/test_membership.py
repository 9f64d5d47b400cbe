"""Every process that is no longer a member is told of, once, whatever changes come as one."""

from __future__ import annotations

from adamctl.roles.coordinator.core.membership import Membership


def test_one_whose_key_is_deleted_is_gone() -> None:
    members = Membership({"a": 1})
    assert members.take({"a": 1, "b": 2}, (), True, 5) == []
    assert members.take({}, ("b", "c"), False, 6) == [("b", 2)]
    assert members.take({}, ("b",), False, 7) == []


def test_one_that_another_has_followed_is_gone() -> None:
    members = Membership({})
    members.take({"a": 1}, (), True, 5)
    assert members.take({"a": 3}, (), False, 6) == [("a", 1)]
    assert members.take({}, ("a",), False, 7) == [("a", 3)]


def test_one_that_a_whole_reading_does_not_have_is_gone() -> None:
    members = Membership({})
    members.take({"a": 1, "b": 2}, (), True, 5)
    assert members.take({"b": 2}, (), True, 9) == [("a", 1)]


def test_one_that_was_expected_and_is_not_there_at_first_is_gone() -> None:
    assert Membership({"a": 1, "b": 2, "c": 3}).take({"a": 1, "b": 4}, (), True, 5) == [("b", 2), ("c", 3)]


def test_one_that_came_and_went_between_two_changes_is_gone() -> None:
    members = Membership({})
    members.take({}, (), True, 5)
    members.found("a", 2, 6)
    assert members.take({}, ("a",), False, 7) == [("a", 2)]
    assert members.take({}, ("a",), False, 8) == []


def test_one_that_came_and_was_followed_between_two_changes_is_gone() -> None:
    members = Membership({"a": 1})
    members.take({"a": 1}, (), True, 5)
    members.found("a", 2, 6)
    assert members.take({"a": 3}, (), False, 7) == [("a", 1), ("a", 2)]


def test_changes_from_before_it_was_found_say_nothing_of_it() -> None:
    members = Membership({"a": 1})
    members.take({"a": 1}, (), True, 5)
    members.found("a", 2, 7)
    assert members.take({}, ("a",), False, 6) == [("a", 1)]
    assert members.take({"a": 2}, (), False, 7) == []
    assert members.take({}, ("a",), False, 8) == [("a", 2)]


def test_one_that_was_found_and_is_known_is_told_of_once() -> None:
    members = Membership({"a": 1})
    members.take({"a": 1}, (), True, 5)
    members.found("a", 1, 5)
    assert members.take({}, ("a",), False, 6) == [("a", 1)]

"""A role is waited for from when it stops serving, and that is said now and then."""

from __future__ import annotations

from adamctl.launch.waits import Waits


def test_nothing_is_said_of_short_waits() -> None:
    waits = Waits()
    assert waits.look(["ps-1"], 100.0) == ""
    assert waits.look(["ps-1"], 101.9) == ""
    assert waits.look([], 102.5) == ""


def test_who_is_waited_for_is_said_every_ten_seconds() -> None:
    waits = Waits()
    said = {now_s: text for now_s in range(30) if (text := waits.look(["ps-1", "worker-1"], float(now_s)))}
    assert said == {
        2: "ps-1 (for 2 s), worker-1 (for 2 s)",
        12: "ps-1 (for 12 s), worker-1 (for 12 s)",
        22: "ps-1 (for 22 s), worker-1 (for 22 s)",
    }


def test_one_that_served_and_was_killed_counts_from_its_end() -> None:
    waits = Waits()
    waits.look(["worker-1", "worker-2"], 0.0)
    for now_s in range(1, 118):
        waits.look([], float(now_s))
    assert waits.look(["worker-2"], 118.0) == ""
    assert waits.longest == 118.0
    assert waits.look(["worker-2"], 120.0) == "worker-2 (for 2 s)"


def test_a_newcomer_among_those_waited_for_has_a_time_of_its_own() -> None:
    waits = Waits()
    waits.look(["ps-1"], 0.0)
    waits.look(["ps-1", "worker-1"], 5.0)
    assert waits.longest == 0.0
    assert waits.look(["ps-1", "worker-1"], 12.0) == ""
    assert waits.look(["ps-1", "worker-1"], 15.0) == "ps-1 (for 15 s), worker-1 (for 10 s)"

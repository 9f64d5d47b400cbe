"""Flights of a replica of partitions begin as far as the coordinator allows steps, and no further."""

from __future__ import annotations

from adamctl.roles.worker.core.grants import FlightGrants


class Told:
    """What a replica's grants have told, and a clock."""

    def __init__(self) -> None:
        self.changes, self.now_s = 0, 0.0
        self.granted: list[int] = []
        self.grants = FlightGrants(self.changed, self.granted.append, lambda: self.now_s)

    def changed(self) -> None:
        self.changes += 1

    def announce(self, *trains: bool, first: int = 1) -> None:
        for number, kind in enumerate(trains, first):
            self.grants.announced(number, kind)


def test_flights_are_granted_up_to_the_limit_and_only_those_that_there_are() -> None:
    told = Told()
    told.announce(True, True, True)
    assert told.grants.granted == 0 and told.grants.stand() == (0, 1, 0) and told.changes == 1
    told.grants.allow(2, 0)
    assert told.granted == [2] and told.grants.stand() == (0, 3, 0)
    told.grants.allow(9, 0)
    told.announce(True, True, first=4)
    assert told.granted == [2, 3, 4, 5] and told.grants.stand() == (0, 0, 0)


def test_evaluations_are_no_steps_and_come_in_their_turn() -> None:
    told = Told()
    told.announce(False, True, False, True)
    assert told.granted == [1]
    told.grants.allow(1, 0)
    assert told.granted == [1, 3]


def test_what_is_done_is_told() -> None:
    told = Told()
    told.grants.allow(1, 0)
    told.announce(True)
    told.grants.finish()
    assert told.grants.stand() == (1, 0, 0) and told.changes == 1


def test_what_was_allowed_before_a_rest_is_void_also_when_it_comes_late() -> None:
    told = Told()
    told.grants.allow(9, 0)
    told.announce(True)
    told.grants.finish()
    told.grants.rest()
    told.announce(True, True, first=2)
    assert told.grants.granted == 1 and told.grants.stand() == (1, 2, 1)
    told.grants.allow(9, 0)  # asked for before the rest
    assert told.grants.granted == 1
    told.grants.allow(2, 1)
    assert told.granted == [1, 2]


def test_waits_are_counted_until_nothing_waits() -> None:
    told = Told()
    told.announce(True, True)
    told.now_s = 2.0
    told.grants.allow(1, 0)
    told.now_s = 5.0
    told.grants.allow(2, 0)
    assert told.grants.waits == 1 and told.grants.wait_s == 5.0
    told.now_s = 9.0
    told.announce(True, first=3)
    told.now_s = 10.0
    told.grants.allow(3, 0)
    assert told.grants.waits == 2 and told.grants.wait_s == 6.0

"""The holder's side of a lease: it counts from when a beacon was sent, whatever comes back, and however late."""

from __future__ import annotations

import time
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from adamctl.roles.lease import BEACONS_OPEN_MAX, Lease, lease_clock


def test_it_counts_from_the_sending_not_from_the_answer() -> None:
    lease = Lease(4.0, lambda: 9.0)
    assert not lease.valid(0.0) and lease.until_s == -inf
    lease.sent(1, 10.0)
    assert lease.confirmed(1) == 14.0  # whenever that was
    assert lease.valid(13.99) and not lease.valid(14.0)
    assert lease.valid(), "9.0 by its own clock"


def test_answers_that_come_late_twice_or_out_of_order_never_shorten_it() -> None:
    lease = Lease(4.0)
    for number, sent_s in ((1, 10.0), (2, 11.0), (3, 12.0)):
        lease.sent(number, sent_s)
    assert lease.confirmed(2) == 15.0
    assert lease.confirmed(1) == 15.0 and lease.confirmed(2) == 15.0 and lease.confirmed(99) == 15.0
    assert lease.confirmed(3) == 16.0
    assert lease.confirmed_s == 12.0 and Lease.endless().confirmed_s == inf


def test_what_was_given_up_does_not_come_back() -> None:
    lease = Lease(4.0)
    lease.sent(1, 10.0)
    lease.sent(2, 11.0)
    assert lease.confirmed(1) == 14.0
    lease.end()
    assert lease.confirmed(2) == -inf and not lease.valid(0.0)
    lease.until_s = 15.0  # by an answer that another thread was taking in
    assert not lease.valid(0.0)


def test_unanswered_beacons_are_forgotten() -> None:
    lease = Lease(4.0)
    for number in range(1000):
        lease.sent(number, float(number))
    assert lease.confirmed(999 - BEACONS_OPEN_MAX) == -inf
    assert lease.confirmed(999) == 1003.0


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30))
def test_it_never_outlives_what_the_grantor_counts(beacons: list[tuple[float, bool]]) -> None:
    """However long messages take, the grantor hears a beacon after it was sent, so its G > D ends later."""
    lease, granted_until_s = Lease(4.0), -inf
    for number, (at_s, heard) in enumerate(sorted(beacons)):
        lease.sent(number, at_s)
        if heard:
            granted_until_s = at_s + 5.0
            lease.confirmed(number)
        assert lease.until_s <= granted_until_s


def test_nobody_ends_what_has_no_end() -> None:
    assert Lease.endless().valid(1e18)


def test_the_clock_counts_suspension() -> None:
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert abs(lease_clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    assert lease_clock() <= lease_clock()

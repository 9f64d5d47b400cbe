"""Of the time with open flights, how much threads waited, and for whom."""

from __future__ import annotations

import pytest

from adamctl.roles.worker.core.waiting import OF_SERVERS, WINDOW_S, WaitLedger


def test_nothing_has_been_waited_for_before_anything_was_done() -> None:
    assert WaitLedger().waiting() == (0.0, {})


def test_shares_are_of_the_time_with_open_flights() -> None:
    ledger = WaitLedger()
    ledger.worked(6.0)
    ledger.slept(2.0, [1])
    ledger.slept(1.0, [1, 2])
    ledger.slept(1.0, [OF_SERVERS])
    waiting = ledger.waiting()
    assert waiting.share == pytest.approx(0.4)
    assert waiting.waits_for == pytest.approx({OF_SERVERS: 0.1, 1: 0.25, 2: 0.05})
    assert waiting.for_status() == {"waiting_share": 0.4, "waits_for": {"servers": 0.1, "1": 0.25, "2": 0.05}}


def test_a_thread_that_finds_no_flight_left_waits_for_nobody() -> None:
    ledger = WaitLedger()
    ledger.worked(1.0)
    ledger.slept(1.0, [])
    assert ledger.waiting() == (0.0, {})
    ledger.slept(2.0, [0])
    assert ledger.waiting().share == 0.5


def test_what_was_long_ago_is_forgotten() -> None:
    ledger = WaitLedger()
    for _ in range(100):
        ledger.slept(1.0, [1])
    assert ledger.waiting().share == 1.0
    for _ in range(int(4 * WINDOW_S)):
        ledger.worked(1.0)
    assert ledger.waiting().share < 0.1

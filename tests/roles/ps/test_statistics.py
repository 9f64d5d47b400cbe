"""Rates over the last seconds."""

from __future__ import annotations

from adamctl.roles.ps.statistics import WINDOW_S, Rates


def test_rates_are_over_the_window_and_not_over_the_whole_life() -> None:
    rates = Rates(0.0)
    assert rates.sample(1.0, {"n": 10.0}) == {"n": 10.0}
    for second in range(2, 20):
        found = rates.sample(float(second), {"n": 10.0})
    assert found == {"n": 0.0}
    assert rates.sample(20.0, {"n": 10.0 + WINDOW_S}) == {"n": 1.0}
    assert len(rates._samples) <= WINDOW_S / 0.5 + 2


def test_counters_come_and_go() -> None:
    rates = Rates(0.0)
    rates.sample(1.0, {"a": 5.0})
    assert rates.sample(2.0, {"b": 4.0}) == {"b": 2.0}

"""When the end of a certificate is told, and how long its connections go on; by readings of a clock that is given."""

from __future__ import annotations

import pytest

from adamctl.net.tls.expiry import DAY_S, GRACE_S_MAX, Lifetime, duration

QUARTER = Lifetime(1000.0, 1000.0 + 90 * DAY_S)


@pytest.mark.parametrize(
    ("days_left", "stage"),
    [(90, 0), (30.01, 0), (30, 1), (7.01, 1), (7, 2), (1.01, 2), (1, 3), (0.01, 3), (0, 4), (-3, 4)],
)
def test_the_end_is_told_at_a_third_at_7_days_at_1_day_and_after_it(days_left: float, stage: int) -> None:
    assert QUARTER.stage(QUARTER.not_after_s - days_left * DAY_S) == stage


def test_a_short_lifetime_has_only_the_stages_that_fit() -> None:
    assert Lifetime(0, 30 * DAY_S).stages_s == (10 * DAY_S, 7 * DAY_S, DAY_S, 0.0)
    assert Lifetime(0, 9.0).stages_s == (3.0, 0.0)


def test_what_is_told() -> None:
    end = QUARTER.not_after_s
    assert QUARTER.warning(end - 31 * DAY_S) == ""
    assert QUARTER.warning(end - 7 * DAY_S) == "expires in 7 days"
    assert QUARTER.warning(end - 3600 * 5) == "expires in 5 hours"
    assert QUARTER.warning(end + 1) == "has expired"
    assert [duration(s) for s in (0.4, 119, 120, 7200, 2 * DAY_S)] == [
        "0 seconds",
        "119 seconds",
        "2 minutes",
        "2 hours",
        "2 days",
    ]


def test_connections_end_after_the_end_and_not_all_at_once() -> None:
    times = [QUARTER.closing_s(share) - QUARTER.not_after_s for share in (0.0, 0.5, 1.0)]
    assert times == [0.0, GRACE_S_MAX / 2, GRACE_S_MAX]
    assert Lifetime(0, 10.0).closing_s(1.0) == pytest.approx(10.2)

"""`bench metrics`: what follows from measured periods, and that it measures."""

from __future__ import annotations

import pytest

from adamctl.bench.metrics import BAR, Period, extra_of, run_metrics_benchmark

QUIET = Period(10.0, 20_000.0, 10.0, 0.0, 0)
"""One core trains on 2,000 examples a second."""


def test_the_extra_time_is_that_of_the_same_examples() -> None:
    scraped = Period(10.0, 10_000.0, 5.4, 0.2, 100)  # half as many examples in 0.4 s more than half of the time
    found = extra_of([(scraped, QUIET)], 2)
    assert found["roles_ms_per_scrape"] == pytest.approx(4.0) and found["server_ms_per_scrape"] == pytest.approx(2.0)
    assert found["roles_ratio"] == pytest.approx(0.002) and found["ratio"] == pytest.approx(0.003)
    assert found["busy_cores"] == pytest.approx(1.0) and found["scrapes"] == 100
    assert BAR.is_met(found["ratio"]) and not BAR.is_met(2 * found["ratio"])


def test_the_middle_of_the_pairs_counts() -> None:
    costs = [Period(10.0, 20_000.0, 10.0 + extra_s, 0.0, 10) for extra_s in (0.1, 5.0, -3.0)]
    found = extra_of([(scraped, QUIET) for scraped in costs], 1)
    assert found["ratio"] == pytest.approx(0.01)
    assert found["spread"] == (pytest.approx(-0.3), pytest.approx(0.5))


@pytest.mark.slow
def test_it_measures_a_run() -> None:
    report = run_metrics_benchmark(3.0, 1, 20.0)
    amplified, each_second = report["results"]
    assert amplified["part"] == "amplified" and amplified["details"]["scrapes"] >= 20
    assert each_second["part"] == "each_second" and each_second["details"]["scrapes"] >= 2
    assert amplified["details"]["server_ms_per_scrape"] > 0 and amplified["details"]["busy_cores"] > 0.1

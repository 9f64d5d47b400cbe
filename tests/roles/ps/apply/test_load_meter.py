"""What a server says about its load: shares of the last moments, rates of all threads together."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.roles.ps.apply.load_meter import SAMPLE_EVERY_S, LoadMeter, Work
from adamctl.wire.constants import UpdateKind
from tests.roles.ps.core_harness import Harness


def test_a_reading_covers_the_time_since_the_one_before() -> None:
    meter, works = LoadMeter(100.0), (Work(), Work())
    assert not meter.due(100.0 + SAMPLE_EVERY_S / 2)
    assert meter.due(100.0 + SAMPLE_EVERY_S)
    meter.sample(101.0, 1.5, works, 2)
    assert meter.load is not None and meter.load.busy == pytest.approx(0.75)
    assert (meter.load.products_per_s, meter.load.adds_per_s) == (0.0, 0.0)
    assert not meter.due(101.0 + SAMPLE_EVERY_S / 2)
    meter.sample(102.0, 1.7, works, 2)
    assert meter.load.busy == pytest.approx(0.1)


def test_rates_are_of_time_spent_on_that_kind_of_work_times_the_threads() -> None:
    meter, works = LoadMeter(0.0), (Work(), Work())
    for work in works:
        work.added, work.adding_s = 300, 0.1
    works[0].multiplied, works[0].multiplying_s = 1000, 0.5
    meter.sample(1.0, 0.7, works, 2)
    assert meter.load is not None
    assert meter.load.adds_per_s == pytest.approx(6000)
    assert meter.load.products_per_s == pytest.approx(4000)


def test_appliers_count_what_they_do() -> None:
    h = Harness("sgd")
    work = h.applier._done
    size = h.layout.shards[0].size
    h.push("gradient", [(0, 1, 1.0)], kind=UpdateKind.GRADIENT)
    h.apply()
    assert (work.added, work.multiplied) == (size, 0) and work.adding_s > 0
    h.push("refused", [(0, 2, np.nan)], kind=UpdateKind.GRADIENT)
    h.apply()
    assert work.added == size

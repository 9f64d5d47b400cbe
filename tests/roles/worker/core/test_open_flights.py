"""A member hangs where it holds up the oldest flight, and waits neither for another partition nor for servers."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from adamctl.roles.worker.core.open_flights import (
    DONE,
    SERVERS,
    WAITS,
    WORKS,
    FlightWatch,
    Patience,
    Standing,
    who_hangs,
)

PATIENCE = Patience(least_s=60.0, first_s=300.0, longest=5.0)


def test_the_contracts_patience_is_the_default() -> None:
    assert Patience() == PATIENCE


def test_no_flight_is_waited_for_where_none_is_open() -> None:
    watch = FlightWatch(PATIENCE)
    assert watch.deadline_s == inf
    watch.begins(10.0)
    watch.finished(12.0, 0)
    assert watch.deadline_s == inf


def test_the_first_flight_may_take_longer() -> None:
    watch = FlightWatch(PATIENCE)
    watch.begins(10.0)
    watch.begins(11.0)
    assert watch.deadline_s == 310.0
    watch.finished(200.0, 1)
    assert watch.deadline_s == 200.0 + 5 * 190.0


def test_later_ones_may_take_five_times_the_longest_and_at_least_a_minute() -> None:
    watch = FlightWatch(PATIENCE)
    watch.begins(0.0)
    for now_s in (2.0, 4.0, 5.0):
        watch.finished(now_s, 1)
    assert watch.deadline_s == 65.0
    watch.finished(25.0, 1)
    assert watch.deadline_s == 125.0


def test_a_pause_between_two_ranges_is_nobodys_time() -> None:
    watch = FlightWatch(PATIENCE)
    watch.begins(0.0)
    watch.finished(2.0, 0)
    watch.begins(1000.0)
    assert watch.deadline_s == 1060.0
    watch.finished(1002.0, 1)
    assert watch.deadline_s == 1062.0


def test_what_servers_took_does_not_count() -> None:
    watch = FlightWatch(PATIENCE)
    watch.begins(0.0)
    watch.finished(1.0, 1)
    watch.excused(61.0)
    assert watch.deadline_s == 121.0
    watch.finished(62.0, 1)
    assert watch.deadline_s == 122.0, "the minute does not make all later waits longer"


def test_nothing_is_excused_while_nothing_is_open() -> None:
    watch = FlightWatch(PATIENCE)
    watch.excused(5.0)
    assert watch.deadline_s == inf


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({0: Standing(WAITS, (1,)), 1: Standing(WORKS, (), 70.0)}, 1),
        ({0: Standing(WORKS, (), 70.0), 1: Standing(WAITS, (0,)), 2: Standing(WAITS, (1,))}, 0),
        ({0: Standing(WORKS, (), 2.0), 1: Standing(WORKS, (), 70.0), 2: Standing(WAITS, (0, 1))}, 1),
        ({0: Standing(WORKS, (), 70.0), 1: None}, 1),
        ({0: Standing(WAITS, (1,)), 1: Standing(SERVERS)}, None),
        ({0: Standing(SERVERS), 1: Standing(WORKS, (), 70.0)}, 1),
        ({1: Standing(DONE)}, None),
        ({0: Standing(WAITS, (1,)), 1: Standing(DONE)}, None),
    ],
)
def test_the_one_that_waits_for_nobody_is_named(told: dict[int, Standing | None], named: int | None) -> None:
    assert who_hangs(told, told).partition == named


def test_what_is_known_is_told() -> None:
    told = {0: Standing(WAITS, (2,)), 2: Standing(WORKS, (), 71.4), 3: Standing(WAITS, (2,))}
    assert who_hangs(told, told).text == "it has not gone on for 71 s, and 0, 3 wait"
    assert who_hangs([1], {1: None}).text == "it does not answer"
    assert "servers" in who_hangs([1], {1: Standing(SERVERS)}).text


@pytest.mark.parametrize("seed", range(200))
def test_whoever_is_made_to_hang_is_found(seed: int) -> None:
    """Members wait for those that are behind them in the flight; one hangs wherever it is, and one may not answer."""
    random = Random(seed)
    partitions = random.randint(1, 9)
    places = [random.randint(0, 20) for _ in range(partitions)]
    hangs = random.randrange(partitions)
    places[hangs] = min(places) - 1
    told: dict[int, Standing | None] = {}
    for one, place in enumerate(places):
        behind = [other for other, its in enumerate(places) if its < place]
        known = random.sample(behind, random.randint(1, len(behind))) if behind else []
        told[one] = Standing(WAITS, tuple(known)) if known else Standing(WORKS, (), 80.0 if one == hangs else 1.0)
    finished = {one for one in range(partitions) if one != hangs and random.random() < 0.2}
    left = [one for one in range(partitions) if one not in finished]
    if random.random() < 0.3:
        told[hangs] = None
    verdict = who_hangs(left, told)
    assert verdict.partition == hangs, (seed, told, verdict)

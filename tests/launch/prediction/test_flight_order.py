"""Flights of a prediction: bounded, and taken in order, whoever is done first."""

from __future__ import annotations

from random import Random

import pytest

from adamctl.launch.prediction.flight_order import FlightOrder


@pytest.mark.parametrize("seed", range(20))
def test_flights_are_taken_in_order_when_all_partitions_are_done(seed: int) -> None:
    random = Random(seed)
    partitions, flights = random.randint(1, 9), random.randint(1, 8)
    order, left, taken = FlightOrder(partitions, flights), dict[int, set[int]](), list[int]()
    while len(taken) < 40:
        if order.may_begin and random.random() < 0.5:
            left[order.begin()] = set(range(partitions))
        if open_ := [flight for flight, who in left.items() if who]:
            flight = random.choice(open_)
            partition = random.choice(sorted(left[flight]))
            order.done(partition, flight)
            left[flight].remove(partition)
        assert order.open == len(left) <= flights and order.next == min(left, default=None)
        assert order.is_next_done == (order.next is not None and not left[order.next])
        if order.is_next_done:
            taken.append(order.take())
            del left[taken[-1]]
    assert taken == list(range(1, 41))


def test_what_cannot_be_is_refused() -> None:
    order = FlightOrder(2, 1)
    with pytest.raises(ValueError, match="found none"):
        order.take()
    flight = order.begin()
    with pytest.raises(ValueError, match="at most 1 open flights"):
        order.begin()
    order.done(1, flight)
    for partition, number in ((1, flight), (0, flight + 1), (2, flight)):
        with pytest.raises(ValueError, match="an open flight once"):
            order.done(partition, number)
    with pytest.raises(ValueError, match="found none"):
        order.take()

"""Ranges come from data servers in turn, and a pass ends when its fraction is done."""

from __future__ import annotations

import pytest

from adamctl.model.scaling.cluster import DataWork
from adamctl.model.scaling.supply import Supply


def test_ranges_are_decoded_one_after_the_other_and_sent_behind() -> None:
    supply = Supply(DataWork(1, 0.1, 0.2, range_batches=2, ranges_ahead=2), 1, batch=5, taken_together=1)
    assert supply.ask(0, 0.0) == [(pytest.approx(1.0 + 2.0), 2), (pytest.approx(3.0 + 2.0), 2)]
    assert supply.ask(0, 0.0) == []  # it has room for two
    assert (supply.decode_s, supply.link_s) == (pytest.approx(2.0), pytest.approx(4.0))


def test_servers_take_turns() -> None:
    supply = Supply(DataWork(2, 0.1, range_batches=1, ranges_ahead=4), 1, batch=10, taken_together=1)
    assert [at_s for at_s, _ in supply.ask(0, 0.0)] == pytest.approx([1.0, 1.0, 2.0, 2.0])


def test_a_replica_takes_what_has_come_and_asks_for_more() -> None:
    supply = Supply(DataWork(range_batches=2, ranges_ahead=1), 1, batch=1, taken_together=1)
    assert supply.take(0, 1) == (0, 0)
    ((_, count),) = supply.ask(0, 0.0)
    supply.came(0, count)
    assert supply.take(0, 1) == (0, 1)
    assert [count for _, count in supply.ask(0, 0.0)] == [2]


@pytest.mark.parametrize(("fraction", "needed"), [(0.5, 2), (1.0, 4)])
def test_a_pass_ends_with_its_fraction_once_all_is_handed_out(fraction: float, needed: int) -> None:
    data = DataWork(range_batches=2, ranges_ahead=1, pass_examples=40, pass_fraction=fraction)
    supply = Supply(data, 2, batch=10, taken_together=1)
    for replica in (0, 1):
        assert [count for _, count in supply.ask(replica, 0.0)] == [2]
        supply.came(replica, 2)
    done = [supply.finished(*supply.take(number % 2, 1)) for number in range(needed)]
    assert done == [False] * (needed - 1) + [True]
    assert supply.take(0, 1) == (
        (0, 1) if needed == 2 else (1, 0)
    )  # what is left of the old pass is trained all the same
    assert [count for _, count in supply.ask(1, 0.0)] == [2]  # of the next one


def test_what_a_dead_replica_had_is_handed_out_again() -> None:
    supply = Supply(DataWork(range_batches=4, ranges_ahead=1, pass_examples=40), 2, batch=10, taken_together=1)
    supply.ask(0, 0.0)
    supply.came(0, 4)
    assert supply.ask(1, 0.0) == []  # nothing is left
    assert supply.take(0, 1) == (0, 1)
    supply.lost(0, computing=1)
    assert [count for _, count in supply.ask(1, 0.0)] == [4]


def test_a_context_takes_batches_of_one_pass() -> None:
    supply = Supply(DataWork(range_batches=2, ranges_ahead=1, pass_examples=30), 1, batch=10, taken_together=2)
    for count in (2, 1):
        supply.ask(0, 0.0)
        supply.came(0, count)
    assert supply.take(0, 2) == (0, 2)
    assert supply.take(0, 2) == (0, 1)
    assert supply.is_over(0)

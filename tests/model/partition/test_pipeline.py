"""Flights are followed through a plan: what waits, what is hidden, and which link or processor is never idle."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.model.partition.cost import price
from adamctl.model.partition.pipeline import Pipeline, PipelineStep, Send, interval_s
from adamctl.model.partition.rules import make_plan
from tests.model.partition.any_model import models
from tests.model.partition.machines import Even, conditions

MIXED = Model((12, 12, 2), (Conv2D(4, 3, padding="same"), Conv2D(6, 3, padding="same"), Dense(8), Softmax(4)))


def there_and_back(work_s: float, sent_bytes: float) -> Pipeline:
    """Partition 0 works, partition 1 works with what that found, then 0 with what 1 found."""
    up, down = Send(1, "up", sent_bytes), Send(0, "down", sent_bytes)
    first = [PipelineStep(work_s, sends=[up]), PipelineStep(work_s, {(1, "down")})]
    return [first, [PipelineStep(2 * work_s, {(0, "up")}, [down])]]


@pytest.mark.parametrize(
    ("flights", "expected"),
    [
        (1, 4.0 + 2 * (0.5 + 0.25)),  # nothing is hidden
        (2, 2.75),  # half of a flight alone: each waits for the other
        (3, 2.0),  # as fast as a partition computes
        (8, 2.0),
    ],
)
def test_more_flights_hide_more_of_what_a_flight_waits(flights: int, expected: float) -> None:
    pipeline = there_and_back(1.0, 100.0)
    assert interval_s(pipeline, flights, 1, bytes_per_s=200.0, latency_s=0.25) == pytest.approx(expected)


def test_blocks_share_links() -> None:
    pipeline = there_and_back(1.0, 500.0)
    assert interval_s(pipeline, 8, 1, bytes_per_s=100.0, latency_s=0.0) == pytest.approx(5.0)
    to_two = [[PipelineStep(0.0, sends=[Send(1, "one", 300.0), Send(2, "two", 300.0)])]]
    to_two += [[PipelineStep(0.0, {(0, name)})] for name in ("one", "two")]
    assert interval_s(to_two, 8, 1, bytes_per_s=100.0, latency_s=0.0) == pytest.approx(6.0)
    from_two: Pipeline = [[PipelineStep(0.0, sends=[Send(2, name, 300.0)])] for name in ("one", "two")]
    from_two.append([PipelineStep(0.0, {(0, "one"), (1, "two")})])
    assert interval_s(from_two, 8, 1, bytes_per_s=100.0, latency_s=0.0) == pytest.approx(6.0)


def test_pushes_and_fetches_occupy_the_link_and_nobody_waits_for_them() -> None:
    pipeline = [[PipelineStep(1.0, sends=[Send(None, "push", 50.0, 80.0)])]]
    assert interval_s(pipeline, 2, 1, bytes_per_s=100.0, latency_s=9.0) == pytest.approx(1.0)
    crowded = there_and_back(1.0, 100.0)
    crowded[0][-1].sends.append(Send(None, "push", 300.0, 0.0))
    # A block has half of the link beside them. That the link has to carry all of it is a bound of its own (`price`).
    assert interval_s(crowded, 1, 1, bytes_per_s=100.0, latency_s=0.0) == pytest.approx(4.0 + 2.0 + 1.0)


def test_threads_take_several_flights_at_once() -> None:
    pipeline = there_and_back(1.0, 0.0)
    assert interval_s(pipeline, 8, 2, bytes_per_s=inf, latency_s=0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("partitions", [2, 3, 4])
@pytest.mark.parametrize("flights", [1, 2, 4])
@pytest.mark.parametrize("bytes_per_s", [1e4, 1e6, inf])
def test_no_plan_is_faster_than_what_binds_it(partitions: int, flights: int, bytes_per_s: float) -> None:
    found = price(make_plan(MIXED, partitions), Even(1e7), conditions(flights=flights, bytes_per_s=bytes_per_s))
    bounds = [max(found.compute_s), found.flight_s / flights, found.link_bytes / bytes_per_s]
    assert found.interval_s >= max(bounds) * (1 - 1e-9)
    assert found.interval_s <= sum(bounds) * flights


@given(models(), st.integers(2, 4), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_flight_of_every_plan_ends(model: Model, partitions: int, flights: int) -> None:
    """Whatever a step needs is sent by another one before it."""
    try:
        plan = make_plan(model, partitions)
    except ConfigurationError:  # it cannot be cut into so many
        return
    found = price(plan, Even(), conditions(flights=flights, bytes_per_s=1e6, latency_s=1e-4))
    assert 0 < found.interval_s < inf

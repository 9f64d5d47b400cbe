"""Every member makes the same flights of a range."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.config.experiment import OptimizerConfig
from adamctl.kernels.partition.program import Batch
from adamctl.roles.worker.partition.taking import InOrder, Rates, flights_of_task
from adamctl.roles.worker.partition.threads import Flight
from adamctl.wire.messages import EvaluateTask, TrainTask


def experiment() -> Any:
    return SimpleNamespace(seed=7, optimizer=OptimizerConfig(lr=0.5))


def examples(count: int) -> Any:
    return SimpleNamespace(images=np.arange(count, dtype=np.float32).reshape(count, 1), answers=np.arange(count))


def test_a_range_becomes_batches_with_their_keys_and_rates() -> None:
    task = TrainTask(3, 2, 100, 110, 0.0, 0.0)
    flights = flights_of_task(task, examples(10), 5, 4, experiment(), Rates(2.0, 0.0))
    assert [flight.number for flight in flights] == [5, 6, 7]
    assert [len(flight.batch.labels) for flight in flights] == [4, 4, 2]
    assert [flight.batch.labels[0] for flight in flights] == [0, 4, 8]
    assert len({flight.batch.key for flight in flights}) == 3
    assert all(flight.trains and flight.rate == 2 * flight.learning_rate for flight in flights)
    again = flights_of_task(task, examples(10), 50, 4, experiment(), Rates(None, 0.25))
    assert [flight.batch.key for flight in again] == [flight.batch.key for flight in flights], (
        "of the place in the pass"
    )
    assert all(flight.rate == 0.25 for flight in again)


def test_an_evaluation_does_not_train() -> None:
    task = EvaluateTask(1, 1, "test", 0, 6)
    flights = flights_of_task(task, examples(6), 1, 4, experiment(), Rates(1.0, 0.0))
    assert [flight.trains for flight in flights] == [False, False]


def flights(first: int, count: int) -> list[Flight]:
    batch = Batch(np.zeros((1, 1), np.float32), np.zeros(1, np.int32))
    return [Flight(number, batch) for number in range(first, first + count)]


@pytest.mark.parametrize("order", [(1, 4, 6), (6, 4, 1), (4, 1, 6), (4, 6, 1)])
def test_flights_go_in_order_whatever_comes_first(order: tuple[int, ...]) -> None:
    counts, waiting, taken = {1: 3, 4: 2, 6: 1}, InOrder(), list[int]()
    for first in order:
        taken += [flight.number for flight in waiting.add(first, flights(first, counts[first]))]
    assert taken == [1, 2, 3, 4, 5, 6]
    assert waiting.add(7, []) == []

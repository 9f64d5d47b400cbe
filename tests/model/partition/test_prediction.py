"""What predicting takes of memory, and into how many partitions a model goes."""

from __future__ import annotations

from math import prod

import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.prediction import (
    BATCH,
    FLIGHTS_BYTES_MAX,
    flight_examples,
    open_flights,
    prediction_memory,
    prediction_plan,
    smallest_that_fits,
)
from adamctl.model.partition.work import PROCESS_BYTES

LARGE = Model((1000,), (Dense(4000, "relu"), Dense(4000), Softmax(10)))
"""20 million parameters, 80 MB."""
WIDE = Model((100, 100, 30), (Dense(4), Softmax(2)))


def test_a_process_holds_its_parameters_once_and_its_flights() -> None:
    whole = prediction_memory(prediction_plan(LARGE, 1, {}), 0, 7, 3)
    parameters = 1001 * 4000 + 4001 * 4000 + 4001 * 10
    assert (whole.process, whole.parameters, whole.factors) == (PROCESS_BYTES, 4 * parameters, 0)
    assert whole.activations == 4 * 7 * 3 * 8010 and whole.examples == 4 * 7 * 3 * 1010
    halves = [prediction_memory(prediction_plan(LARGE, 2, {}), one, 7, 3) for one in (0, 1)]
    assert sum(half.parameters for half in halves) == whole.parameters


def test_flights_are_as_large_as_their_memory_allows() -> None:
    assert flight_examples(prediction_plan(LARGE, 2, {}), 3, {}) == BATCH
    plan = prediction_plan(WIDE, 2, {})
    for flights in (1, 2, 9):
        batch = flight_examples(plan, flights, {})
        assert batch % 8 == 0 and batch < BATCH
        taken = [prediction_memory(plan, one, batch, flights).total for one in (0, 1)]
        assert max(taken) - PROCESS_BYTES <= FLIGHTS_BYTES_MAX + 4 * prod(WIDE.input) * 4
    limit_bytes = PROCESS_BYTES + (10 << 20)
    assert 1 <= flight_examples(plan, 2, {}, limit_bytes) < flight_examples(plan, 2, {})


def test_partitions_have_one_more_flight_to_go_on_with() -> None:
    assert [open_flights(1, threads) for threads in (1, 2, 8)] == [2, 3, 9]
    assert [open_flights(2, threads) for threads in (1, 2, 8)] == [3, 4, 10]


def test_the_smallest_number_of_partitions_that_fits_is_named() -> None:
    limit_bytes = PROCESS_BYTES + (32 << 20)
    smallest = smallest_that_fits(LARGE, {}, 2, limit_bytes)
    assert smallest == 3
    with pytest.raises(ConfigurationError) as raised:
        flight_examples(prediction_plan(LARGE, 2, {}), 2, {}, limit_bytes)
    assert "does not fit 2 processes of 0.24 GB each: the largest part needs 0.25 GB" in str(raised.value)
    assert "the smallest number of partitions that fits is 3" in str(raised.value)
    assert flight_examples(prediction_plan(LARGE, 3, {}), 2, {}, limit_bytes) >= 1
    with pytest.raises(ConfigurationError, match="no cut into up to 64 partitions fits"):
        flight_examples(prediction_plan(LARGE, 2, {}), 2, {}, PROCESS_BYTES)


def test_one_partition_may_have_the_parameters_and_another_one_the_flights() -> None:
    """Of each process its own memory counts: the largest parameters and the largest flights are in different ones."""
    model = Model((64, 64, 3), (Conv2D(32, 3), MaxPool2D(16), Dense(4000, "relu"), Softmax(10)))
    cuts = {"conv2d1": Cut("rows", at=(0,)), "dense1": Cut("units", at=(4000,)), "softmax1": Cut("units", at=(10,))}
    plan = prediction_plan(model, 2, cuts)
    dense, images = (prediction_memory(plan, one, 1, 10) for one in (0, 1))
    assert dense.parameters > images.parameters and dense.activations + dense.edges < images.activations + images.edges
    limit_bytes = max(dense.total, images.total)
    assert flight_examples(plan, 10, cuts, limit_bytes) == 1
    with pytest.raises(ConfigurationError, match="does not fit 2 processes"):
        flight_examples(plan, 10, cuts, limit_bytes - 1)


def test_a_flight_of_one_example_may_be_larger_than_is_meant_where_there_is_the_memory() -> None:
    plan = prediction_plan(WIDE, 2, {})
    flights = FLIGHTS_BYTES_MAX // (4 * prod(WIDE.input))  # the inputs alone take it
    for limit_bytes in (None, 3 * FLIGHTS_BYTES_MAX + PROCESS_BYTES):
        assert flight_examples(plan, flights, {}, limit_bytes) == 1


def test_what_cannot_be_cut_names_the_most_that_can() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be cut into 3 .*the most that it can be cut into is 2"):
        prediction_plan(WIDE, 3, {})
    with pytest.raises(ConfigurationError, match="the most that it can be cut into is 10"):
        prediction_plan(LARGE, 1000, {})
    for number in (0, -1):
        with pytest.raises(ConfigurationError, match=f"partitions: expected at least 1; found {number}"):
            prediction_plan(LARGE, number, {})


def test_cuts_of_the_experiment_count_where_they_are_for_as_many_partitions() -> None:
    cuts = {"dense1": Cut("units", at=(1000,))}
    assert prediction_plan(LARGE, 2, cuts).stages[0].parts[0].outputs == ((0, 1000),)
    assert prediction_plan(LARGE, 4, cuts).stages[0].parts[0].outputs == ((0, 1000),)
    assert prediction_plan(LARGE, 4, cuts).stages[0].parts[3].outputs == ((3000, 4000),)

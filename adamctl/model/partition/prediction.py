"""What predicting takes of memory, how many examples a flight then has, and into how many partitions a model must go.

A partition that predicts holds its parameters once, and the outputs of its flights. Flights have as few examples as a
bound of their memory asks, so the parameters alone decide how many partitions it takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import prod

from adamctl.errors import ConfigurationError
from adamctl.model.description import Model
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.partition.cuts import PARTITIONS_MAX, Cut
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rules import cuts_for, make_plan
from adamctl.model.partition.search import FITTING_MAX
from adamctl.model.partition.stages import CutAxis
from adamctl.model.partition.work import PROCESS_BYTES, Memory, flight_elements, held_elements, packed_elements

BATCH = 256
"""Most examples of a flight."""
FLIGHTS_BYTES_MAX = 256 << 20
"""Most memory of all open flights in one process."""
STEP = 8
"""Flights of more examples have a multiple of it."""

Cuts = Mapping[str, Cut | CutAxis]


def prediction_plan(model: Model, partitions: int, cuts: Cuts) -> PartitionPlan:
    """Returns the plan of a model over so many partitions; `cuts`: those of its experiment, where they still apply.

    Raises:
        ConfigurationError: it cannot be cut so; the message names the most partitions that it can be cut into.
    """
    try:
        return make_plan(model, partitions, cuts_for(cuts, partitions))
    except ConfigurationError as error:
        if partitions < 1:
            raise ConfigurationError(f"partitions: expected at least 1; found {partitions}") from None
        numbers = range(1, min(partitions, PARTITIONS_MAX) + 1)
        most = bisect_left(numbers, True, key=lambda number: _planned(model, number, cuts) is None)
        raise ConfigurationError(
            f"partitions: this model cannot be cut into {partitions} ({error}); the most that it can be cut into is "
            f"{most}"
        ) from error


def open_flights(partitions: int, threads: int) -> int:
    """Returns how many flights may be open, for processes of so many threads.

    Each thread has one, and one more is there when a thread's flight waits, as in training. In partitions there is
    another one: on the way forward alone half of the waits come with a third of the compute.
    """
    return threads + (1 if partitions == 1 else 2)


def prediction_memory(plan: PartitionPlan, partition: int, batch: int, flights: int) -> Memory:
    """Returns the memory of a partition's process that predicts flights of so many examples."""
    kept, edges = flight_elements(plan, partition, forward_only=True)
    per_flight = batch * flights * ELEMENT_BYTES
    held = held_elements(plan, partition) + packed_elements(plan, partition, forward_only=True) * flights
    return Memory(
        PROCESS_BYTES, held * ELEMENT_BYTES, 0, kept * per_flight, edges * per_flight, _shown(plan) * per_flight
    )


def flight_examples(plan: PartitionPlan, flights: int, cuts: Cuts, limit_bytes: int | None = None) -> int:
    """Returns how many examples a flight has, so that the memory of all flights is bounded in every partition.

    Args:
        flights: that may be open.
        cuts: those of the experiment, to say how many partitions fit.
        limit_bytes: of each process; None: no limit.

    Raises:
        ConfigurationError: not even flights of one example fit; the message names the fewest partitions that do.
    """
    if limit_bytes is not None and _least_bytes(plan, flights) > limit_bytes:
        raise _too_large(plan, flights, cuts, limit_bytes)
    examples = min(BATCH, *(_examples(plan, one, flights, limit_bytes) for one in range(plan.partitions)))
    return max(examples // STEP * STEP or examples, 1)


def smallest_that_fits(model: Model, cuts: Cuts, flights: int, limit_bytes: int) -> int | None:
    """Returns the fewest partitions in which no process needs more than a limit, None if none was found."""
    for partitions in range(1, FITTING_MAX + 1):
        plan = _planned(model, partitions, cuts)
        if plan is not None and _least_bytes(plan, flights) <= limit_bytes:
            return partitions
    return None


def _too_large(plan: PartitionPlan, flights: int, cuts: Cuts, limit_bytes: int) -> ConfigurationError:
    smallest = smallest_that_fits(plan.model, cuts, flights, limit_bytes)
    advice = f"no cut into up to {FITTING_MAX} partitions fits"
    if smallest is not None:
        advice = f"the smallest number of partitions that fits is {smallest}"
    holders = "1 process" if plan.partitions == 1 else f"{plan.partitions} processes"
    return ConfigurationError(
        f"memory: the model does not fit {holders} of {limit_bytes / 1e9:,.2f} GB each: the largest part needs "
        f"{_least_bytes(plan, flights) / 1e9:,.2f} GB; {advice}"
    )


def _planned(model: Model, partitions: int, cuts: Cuts) -> PartitionPlan | None:
    try:
        return make_plan(model, partitions, cuts_for(cuts, partitions))
    except ConfigurationError:
        return None


def _least_bytes(plan: PartitionPlan, flights: int) -> int:
    return max(prediction_memory(plan, one, 1, flights).total for one in range(plan.partitions))


def _examples(plan: PartitionPlan, partition: int, flights: int, limit_bytes: int | None) -> int:
    """Returns how many examples of each flight a partition has the memory for; 0 where one takes more than is meant."""
    room_bytes = FLIGHTS_BYTES_MAX
    if limit_bytes is not None:
        room_bytes = min(room_bytes, limit_bytes - prediction_memory(plan, partition, 0, flights).total)
    return room_bytes // (_example_bytes(plan, partition) * flights)


def _example_bytes(plan: PartitionPlan, partition: int) -> int:
    return (sum(flight_elements(plan, partition, forward_only=True)) + _shown(plan)) * ELEMENT_BYTES


def _shown(plan: PartitionPlan) -> int:
    """Returns the elements of an example's inputs and outputs, which all processes share."""
    return prod(plan.model.input) + prod(plan.stages[-1].output)

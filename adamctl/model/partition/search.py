"""Looks for better cuts and for the best number of partitions.

The cuts of the rules come first; then boundaries are moved and other axes tried, one stage at a time, as long as that
helps. That is a small search, not an exhaustive one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from adamctl.errors import ConfigurationError
from adamctl.model.description import Model
from adamctl.model.partition.cost import Conditions, Price, memories_of, price, price_replicas
from adamctl.model.partition.cuts import PARTITIONS_MAX, Cut
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Machine
from adamctl.model.partition.rules import cuts_for, make_plan
from adamctl.model.partition.stages import CutAxis, Stage, stages_of
from adamctl.model.partition.work import Work

PRICED_MAX = 150
"""Plans that a search prices; fewer for many partitions, whose plans take longer."""
WORTH = 0.002
"""Share of the interval, the memory or the bytes that a change must save to count as a saving."""
FITTING_MAX = 64
"""Most partitions that are tried to find what fits."""
Cuts = Mapping[str, Cut | CutAxis]


@dataclass(frozen=True)
class Choice:
    """A number of partitions beside as many whole replicas, which use the same machines.

    Attributes:
        plan, price: of the partitions, with the best cuts found.
        replicas: the price of whole replicas.
        wins: which of the two trains more examples per second and fits: `partitions`, `replicas`, or `neither`.
    """

    plan: PartitionPlan
    price: Price
    replicas: Price
    wins: Literal["partitions", "replicas", "neither"]


def compare(
    model: Model, partitions: int, machine: Machine, conditions: Conditions, cuts: Cuts | None = None
) -> Choice:
    """Prices the best cuts found for a number of partitions, and as many whole replicas.

    Raises:
        ConfigurationError: the network cannot be cut into so many partitions, or a cut of the user's cannot be.
    """
    plan, priced = find_cuts(model, partitions, machine, conditions, cuts)
    replicas = price_replicas(model, partitions, machine, conditions)
    faster = priced.examples_per_s > replicas.examples_per_s * (1 + WORTH)
    if priced.fits and (faster or not replicas.fits):
        return Choice(plan, priced, replicas, "partitions")
    return Choice(plan, priced, replicas, "replicas" if replicas.fits else "neither")


def find_cuts(
    model: Model, partitions: int, machine: Machine, conditions: Conditions, cuts: Cuts | None = None
) -> tuple[PartitionPlan, Price]:
    """Returns the plan with the shortest interval found, then the least memory, then the fewest bytes; and its price.

    Args:
        cuts: of the user; they stay as they are.
    """
    machine, chosen = _Remembering(machine), cuts_for(cuts or {}, partitions)
    best = make_plan(model, partitions, chosen)
    best_price = price(best, machine, conditions)
    if partitions == 1:
        return best, best_price
    left, fixed = min(PRICED_MAX, 400 // partitions), frozenset(chosen)
    improved = True
    while improved and left > 0:
        improved = False
        for stage in stages_of(model):
            if stage.name in fixed or stage.follows:
                continue
            for cut in _others(stage, best.stages[stage.index].cut, partitions):
                if left == 0:
                    break
                left -= 1
                plan = _planned(model, partitions, {**chosen, stage.name: cut})
                found = None if plan is None else price(plan, machine, conditions)
                if plan is not None and found is not None and _is_better(found, best_price):
                    chosen[stage.name], best, best_price, improved = cut, plan, found, True
    return best, best_price


def choose_partitions(
    model: Model,
    workers: int,
    machine: Machine,
    conditions: Conditions,
    cuts: Cuts | None = None,
    numbers: Sequence[int] | None = None,
) -> Choice:
    """Returns the choice for `partitions = "auto"`: of those that fit the memory, the one that trains fastest.

    Its price is that of all replicas that the workers make; beside it stand as many whole replicas as there are
    workers. Of numbers that are as fast, the smallest is chosen.

    Args:
        numbers: that are tried, ascending; None: all that divide `workers`, so that all of them are at work.

    Raises:
        ConfigurationError: none fits; the message names the smallest number that would.
    """
    best: tuple[PartitionPlan, Price] | None = None
    for partitions in divisors(workers) if numbers is None else numbers:
        if _planned(model, partitions, cuts_for(cuts or {}, partitions)) is None:
            continue
        plan, _ = find_cuts(model, partitions, machine, conditions, cuts)
        priced = price(plan, machine, conditions, workers // partitions)
        if priced.fits and (best is None or priced.examples_per_s > best[1].examples_per_s * (1 + WORTH)):
            best = plan, priced
    replicas = price_replicas(model, workers, machine, conditions)
    if best is None:
        smallest = smallest_that_fits(model, conditions, cuts)
        needed = least_bytes(model, divisors(workers) if numbers is None else numbers, conditions, cuts)
        raise too_large(_workers(workers), conditions.memory_bytes or 0, needed, smallest)
    return Choice(*best, replicas, "partitions" if best[0].partitions > 1 else "replicas")


def divisors(workers: int) -> tuple[int, ...]:
    """Returns the numbers of partitions with which no worker is left over, ascending."""
    return tuple(number for number in range(1, min(workers, PARTITIONS_MAX) + 1) if workers % number == 0)


def smallest_that_fits(model: Model, conditions: Conditions, cuts: Cuts | None = None) -> int | None:
    """Returns the smallest number of partitions whose memory is enough, cut by the rules; None if none was found."""
    return smallest_number_that_fits(model, lambda partitions: conditions, cuts)


def smallest_number_that_fits(
    model: Model, conditions: Callable[[int], Conditions], cuts: Cuts | None = None
) -> int | None:
    """Likewise, where conditions depend on the number: workers of one machine share its memory."""
    for partitions in range(1, FITTING_MAX + 1):
        plan, found = _planned(model, partitions, cuts_for(cuts or {}, partitions)), conditions(partitions)
        if plan is not None and (found.memory_bytes is None or largest_bytes(plan, found) <= found.memory_bytes):
            return partitions
    return None


def least_bytes(model: Model, numbers: Sequence[int], conditions: Conditions, cuts: Cuts | None = None) -> int:
    """Returns the memory of the largest partition for that number of partitions, of several, which needs least."""
    plans = (_planned(model, number, cuts_for(cuts or {}, number)) for number in numbers)
    return min((largest_bytes(plan, conditions) for plan in plans if plan is not None), default=0)


def largest_bytes(plan: PartitionPlan, conditions: Conditions) -> int:
    """Returns the memory of the largest partition."""
    return max(memory.total for memory in memories_of(plan, conditions))


def too_large(what: str, memory_bytes: int, needed_bytes: int, smallest: int | None) -> ConfigurationError:
    """Returns the error for a network that `what`, of so much memory each, cannot hold; it names what can.

    Args:
        needed_bytes: by the largest part.
        smallest: the fewest partitions that fit, None if none do.
    """
    if smallest is None:
        advice = (
            f"no cut into up to {FITTING_MAX} partitions meets it; lower train.batch, cluster.threads or the layers"
        )
    else:
        advice = f"the smallest number of partitions that fits is {smallest}: set cluster.partitions = {smallest}"
        advice += ", and cluster.workers to a multiple of it" if smallest > 1 else ""
    limit, needed = f"{memory_bytes / 1e9:,.2f} GB", f"{needed_bytes / 1e9:,.2f} GB"
    return ConfigurationError(
        f"cluster.memory_per_worker: the network does not fit {what} of {limit} each: the largest part needs {needed}; "
        f"{advice}"
    )


class _Remembering:
    """A machine that is asked once about each part: a search prices the same ones many times."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[Work, int], float] = {}

    def seconds(self, work: Work, batch: int) -> float:
        found = self._known.get((work, batch))
        if found is None:
            found = self._known[work, batch] = self._machine.seconds(work, batch)
        return found

    def update_seconds(self, parameters: int) -> float:
        return self._machine.update_seconds(parameters)


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def _planned(model: Model, partitions: int, cuts: Cuts) -> PartitionPlan | None:
    """Returns a plan, None if the network cannot be cut so."""
    try:
        return make_plan(model, partitions, cuts)
    except ConfigurationError:
        return None


def _is_better(new: Price, old: Price) -> bool:
    if new.fits != old.fits:
        return new.fits
    for after, before in (
        (new.interval_s, old.interval_s),
        (new.memory_bytes, old.memory_bytes),
        (new.link_bytes, old.link_bytes),
    ):
        if abs(before - after) > WORTH * before:
            return after < before
    return False


def _others(stage: Stage, cut: Cut, partitions: int) -> Iterator[Cut]:
    """Yields the cuts next to one: other axes, boundaries moved by an eighth of a part or by one, all in one."""
    for axis in stage.axes:
        if axis not in (cut.axis, "groups") and stage.extent(axis) >= partitions:
            yield Cut(axis)
    if cut.at is not None and stage.groups == 1:
        yield from _moved(cut, stage.extent(cut.axis), partitions)
    if stage.axes == ("units",) and cut.axis != "whole":
        yield from (Cut(whole=partition) for partition in (0, partitions - 1))


def _moved(cut: Cut, extent: int, partitions: int) -> Iterator[Cut]:
    assert cut.at is not None
    for step in sorted({max(extent // (8 * partitions), 1), 1}, reverse=True):
        for place in range(len(cut.at)):
            for way in (-step, step):
                at = (*cut.at[:place], cut.at[place] + way, *cut.at[place + 1 :])
                if all(first < last for first, last in pairwise((0, *at, extent))):
                    yield Cut(cut.axis, at)

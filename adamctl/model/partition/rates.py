"""Measured rates of a machine, and the time that a part of a stage takes at them (Adam 3.2.4).

A rate holds for one kind of stage, one shape and one working set. A part that was not measured itself is priced by the
nearest one: of the same shape, in the same cache, of a like working set and batch.
"""

from __future__ import annotations

from math import log2
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.work import Pushing, Work, computed_elements, factored_by, gathered_elements, work_of

Level: TypeAlias = Literal["L2", "L3", "memory"]
_OTHER_SHAPE, _OTHER_LEVEL = 8.0, 4.0
"""How much farther away another shape, or another cache, is than a doubled working set or batch."""


class Machine(Protocol):
    """What computes: `Rates`, or a function that measures."""

    def seconds(self, work: Work, batch: int) -> float:
        """Returns the time of a part of a stage, forward and backward, for a batch on one thread."""
        ...

    def update_seconds(self, parameters: int) -> float:
        """Returns the time in which one thread accrues, and applies, a gradient of so many parameters."""
        ...


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement: `amount` of work, as in `Work`, per second of one thread."""

    kind: str
    label: str
    working_set_bytes: int
    batch: int
    amount_per_s: float


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rates of a machine.

    Attributes:
        l2_bytes, l3_bytes: of one core, and of the cores that share it; 0 where unknown.
        update_per_s: parameters whose gradient one thread accrues and applies per second.
        stages: one entry per measured part of a stage.
    """

    l2_bytes: int
    l3_bytes: int
    update_per_s: float
    stages: tuple[Rate, ...]

    def level(self, working_set_bytes: int) -> Level:
        """Returns the smallest memory that holds a working set."""
        if working_set_bytes <= self.l2_bytes:
            return "L2"
        return "L3" if working_set_bytes <= self.l3_bytes else "memory"

    def seconds(self, work: Work, batch: int) -> float:
        """Returns the time of a part of a stage, forward and backward, for a batch on one thread.

        Raises:
            ConfigurationError: no stage of its kind was measured.
        """
        known = [rate for rate in self.stages if rate.kind == work.kind]
        if not known:
            kinds = ", ".join(sorted({rate.kind for rate in self.stages})) or "none"
            raise ConfigurationError(
                f"rates: expected one of {work.kind}; found {kinds}. Measure it: adamctl plan EXP.toml --json > FILE"
            )
        nearest = min(known, key=lambda rate: self._distance(rate, work, batch))
        return work.amount * batch / nearest.amount_per_s

    def update_seconds(self, parameters: int) -> float:
        """Returns the time in which one thread accrues, and applies, a gradient of so many parameters."""
        return parameters / self.update_per_s

    def times(self, factor: float) -> Rates:
        """Returns the rates of a machine that is so many times as fast."""
        stages = tuple(msgspec.structs.replace(one, amount_per_s=one.amount_per_s * factor) for one in self.stages)
        return msgspec.structs.replace(self, update_per_s=self.update_per_s * factor, stages=stages)

    def _distance(self, rate: Rate, work: Work, batch: int) -> float:
        away = _doublings(rate.working_set_bytes, work.working_set_bytes) + _doublings(rate.batch, batch)
        away += _OTHER_SHAPE * (rate.label != work.label)
        return away + _OTHER_LEVEL * (self.level(rate.working_set_bytes) != self.level(work.working_set_bytes))


class Computing(NamedTuple):
    """The time of a flight in a partition: of each stage, and of its update; seconds of one thread.

    The update is priced in numbers accrued: clipping takes two more passes over a gradient, one for its norm and one to
    scale it; to copy a factor into a slot takes two as well, since the slot is in no cache. What a stage gathers of its
    inputs, and of errors, takes one.

    `forward_shares`: of each stage's time, what the way forward takes.
    """

    stages_s: tuple[float, ...]
    update_s: float
    forward_shares: tuple[float, ...]

    @property
    def total_s(self) -> float:
        return sum(self.stages_s) + self.update_s


def computing(plan: PartitionPlan, partition: int, machine: Machine, batch: int, pushing: Pushing) -> Computing:
    """Returns the time of a flight of `batch` examples in a partition, without what it waits for."""
    factored = factored_by(plan, partition, pushing)
    works = [work_of(plan, stage.index, partition, factored.uncomputed) for stage in plan.stages]
    accrued = computed_elements(plan, partition, factored) * (3 if pushing.clips else 1)
    copied = factored.elements * batch // pushing.examples
    return Computing(
        tuple(
            (0.0 if work is None else machine.seconds(work, batch))
            + machine.update_seconds(gathered_elements(plan, stage.index, partition) * batch)
            for stage, work in zip(plan.stages, works, strict=True)
        ),
        machine.update_seconds(accrued + 2 * copied),
        tuple(1.0 if work is None else work.forward_share for work in works),
    )


def check_rates(rates: Rates) -> None:
    """Checks rates that come from a file.

    Raises:
        ConfigurationError: one is not above 0.
    """
    for name, value in (("update_per_s", rates.update_per_s), *((r.kind, r.amount_per_s) for r in rates.stages)):
        if not 0 < value < float("inf"):
            raise ConfigurationError(f"rates: expected a finite number above 0 for {name}; found {value}")
    for rate in rates.stages:
        if rate.batch < 1 or rate.working_set_bytes < 0:
            found = f"batch {rate.batch}, working_set_bytes {rate.working_set_bytes}"
            raise ConfigurationError(f"rates: expected a batch of at least 1 for {rate.kind}; found {found}")


def _doublings(one: int, other: int) -> float:
    return abs(log2(max(one, 1) / max(other, 1)))

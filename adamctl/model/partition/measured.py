"""What a run has measured of its partitions, beside what was predicted, and the cuts that would follow from it (pure).

A run tells how long each partition computes for an example. That scales rates, so that predictions are what the run
took; and a partition that is slower than its share of the work gets less of each layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.errors import ConfigurationError
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.plan import PartitionPlan, StagePlan
from adamctl.model.partition.rates import Machine, Rates, computing
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.stages import Stage, stages_of
from adamctl.model.partition.work import Pushing, work_of

WORTH = 0.05
"""Share of the slowest partition's time that other cuts must save to be proposed."""


def slowness(
    plan: PartitionPlan, machine: Machine, batch: int, pushing: Pushing, compute_s: Sequence[float]
) -> tuple[float, ...]:
    """Returns by what factor each partition takes longer than predicted.

    Args:
        batch: examples of a flight.
        compute_s: measured, of each partition, for one example.
    """
    predicted = (
        computing(plan, partition, machine, batch, pushing).total_s / batch for partition in range(plan.partitions)
    )
    return tuple(taken / wanted if wanted else 1.0 for taken, wanted in zip(compute_s, predicted, strict=True))


def scaled(rates: Rates, plan: PartitionPlan, batch: int, pushing: Pushing, compute_s: Sequence[float]) -> Rates:
    """Returns rates at which all partitions together take what was measured of them.

    Args:
        compute_s: as for `slowness`.
    """
    predicted = sum(computing(plan, p, rates, batch, pushing).total_s for p in range(plan.partitions)) / batch
    return rates.times(predicted / sum(compute_s))


def propose_cuts(plan: PartitionPlan, compute_s: Sequence[float]) -> dict[str, Cut]:
    """Returns cuts for `[partition]` with which all partitions would take as long; none if that saves little.

    Every partition keeps the speed at which it did its part of the work. Layers that are whole in one partition stay
    there; of the others each partition gets the share that fills its time.

    Args:
        compute_s: measured, of each partition, for one example or any equal number of them.
    """
    everyone = range(plan.partitions)
    if plan.partitions == 1 or min(compute_s) <= 0:
        return {}
    stages = {stage.index: stage for stage in stages_of(plan.model)}
    movable = [cut for cut in plan.stages if cut.cut.at is not None and not stages[cut.index].follows]
    shared, fixed = _amounts(plan, [cut.index for cut in movable])
    speeds = [(shared[p] + fixed[p]) / compute_s[p] for p in everyone]
    if min(speeds) <= 0 or not sum(shared):
        return {}
    even_s = (sum(shared) + sum(fixed)) / sum(speeds)
    left = [max(even_s * speeds[p] - fixed[p], 0.0) for p in everyone]
    cuts = {cut.name: _cut_by(stages[cut.index], cut, left) for cut in movable}
    found = {cut.name: cuts[cut.name] for cut in movable if cuts[cut.name] != cut.cut}
    kept = {cut.name: cut.cut for cut in plan.stages if not stages[cut.index].follows} | found
    try:
        made = make_plan(plan.model, plan.partitions, kept)
    except ConfigurationError:  # a layer cannot be cut like that, such as a convolution in groups
        return {}
    amounts = [sum(pair) for pair in zip(*_amounts(made, [cut.index for cut in movable]), strict=True)]
    slowest_s = max(amount / speed for amount, speed in zip(amounts, speeds, strict=True))
    return found if slowest_s < (1 - WORTH) * max(compute_s) else {}


def _amounts(plan: PartitionPlan, movable: Sequence[int]) -> tuple[list[float], list[float]]:
    """Returns the work of each partition in stages that can move, and in the others."""
    shared, fixed = [0.0] * plan.partitions, [0.0] * plan.partitions
    for stage in plan.stages:
        for partition in range(plan.partitions):
            work = work_of(plan, stage.index, partition)
            if work is not None:
                (shared if stage.index in movable else fixed)[partition] += work.amount
    return shared, fixed


def _cut_by(stage: Stage, plan: StagePlan, weights: Sequence[float]) -> Cut:
    """Returns a cut whose ranges have these weights, in whole groups of maps."""
    axis = plan.cut.axis
    extent = stage.extent(axis)
    unit = extent // stage.groups if axis == "maps" and stage.groups >= len(weights) else 1
    at, total = [], 0.0
    for weight in weights[:-1]:
        total += weight
        at.append(round(total / sum(weights) * extent / unit) * unit)
    return Cut(axis, tuple(at))

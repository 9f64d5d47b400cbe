"""What the cost model of partitions predicts for a setting of the benchmark, beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adamctl.bench.namespaces import TCP_SHARE
from adamctl.bench.partition.machines import Machines
from adamctl.bench.partition.started import Kind
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.kernels.threads import available_cores
from adamctl.model.partition.cost import NEVER, TCP_PROCESSOR_S_PER_BYTE, Conditions, Link, Price, exchanges, price
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Machine, Rates, computing
from adamctl.model.partition.work import SLOTS_IN_USE, Pushing, Work

SHARED = Link(bytes_per_s=5e9, latency_s=50e-6)
"""A copy in memory, and a wait (docs/decisions/0028)."""
TCP = Link(2e9, 200e-6, TCP_PROCESSOR_S_PER_BYTE)
"""Loopback TCP, and a way through the event loop (docs/decisions/0029)."""


class Slowed:
    """A machine that is as fast as a share of another one. See `adamctl.model.partition.rates.Machine`."""

    def __init__(self, rates: Rates, speed: float) -> None:
        self._rates, self._speed = rates, speed

    def seconds(self, work: Work, batch: int) -> float:
        return self._rates.seconds(work, batch) / self._speed

    def update_seconds(self, parameters: int) -> float:
        return self._rates.update_seconds(parameters) / self._speed


def on_shares(conditions: Conditions, plan: PartitionPlan, machine: Machine, machines: Machines) -> Conditions:
    """Returns conditions with the link that processes with a share of a core have.

    With whole cores, event loops carry blocks beside the threads that compute. With a share, the time of the loops at
    both ends is taken from it; and a block waits for processes that have used theirs up, though no more often than
    they do so: not where a flight computes little from one block to the next.

    Args:
        machine: what computes, with its share.
    """
    link, waits = conditions.link, len(exchanges(plan, conditions.batch))
    if machines.share == 1:
        return conditions
    if not waits:
        return replace(conditions, link=replace(link, latency_s=link.latency_s + machines.idle_s()))
    if link.processor_s_per_byte:  # what else than memory is shared goes through event loops
        link = replace(link, latency_s=0.0, processor_s_per_block=link.latency_s / 2 / machines.share)
    members = range(plan.partitions)
    compute_s = max(computing(plan, p, machine, conditions.batch, conditions.pushing).total_s for p in members)
    between_s = compute_s / conditions.threads / waits + 2 * link.processor_s_per_block
    return replace(conditions, link=replace(link, latency_s=link.latency_s + machines.idle_s(between_s)))


class Prediction:
    """Predictions for one network on one kind of machine."""

    def __init__(self, experiment: Experiment, rates: Rates, machines: Machines, batch: int) -> None:
        """`rates`: of this machine, as it is."""
        self._experiment, self._rates, self._machines, self._batch = experiment, rates, machines, batch

    def price(self, kind: Kind, link_bytes_per_s: float | None) -> Price:
        """Returns what a replica costs."""
        plan = plan_of(self._experiment, kind.partitions)
        return price(plan, self.machine(kind), self.conditions(kind, link_bytes_per_s))

    def machine(self, kind: Kind) -> Slowed:
        """Returns what each of a replica's processes runs on."""
        return Slowed(self._rates, self._machines.speed(kind.partitions, kind.threads, available_cores()))

    def conditions(self, kind: Kind, link_bytes_per_s: float | None) -> Conditions:
        """Returns what a replica is priced for: as those of the benchmark, which push to nobody."""
        link = SHARED if kind.transport == "shared" else TCP
        if link_bytes_per_s is not None:
            link = replace(link, bytes_per_s=link_bytes_per_s * TCP_SHARE)
        applies = self._experiment.local_learning_rate_factor() != 0.0
        clips = self._experiment.optimizer.clip_norm is not None
        pushing = Pushing(self._batch * self._experiment.train.steps_per_push, 1, applied_locally=applies, clips=clips)
        found = Conditions(self._batch, kind.threads, max(kind.flights, 1), SLOTS_IN_USE, NEVER, pushing, link)
        return on_shares(found, plan_of(self._experiment, kind.partitions), self.machine(kind), self._machines)

    def row(self, kind: Kind, link_bytes_per_s: float | None, images_per_s: float) -> dict[str, Any]:
        """Returns what a row of the benchmark's table says of the prediction; `images_per_s`: as measured."""
        found = self.price(kind, link_bytes_per_s)
        return {
            "predicted_images_per_s": round(found.examples_per_s, 2),
            "over_predicted": round(images_per_s / found.examples_per_s, 3),
            "binds": found.binds,
        }

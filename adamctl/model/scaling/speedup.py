"""How much faster several machines train one model than one does, mini-batch after mini-batch (DistBelief 5, figure 3).

One mini-batch is under way at a time: every phase ends when its slowest machine has computed and exchanged. The paper
says little of its machines; whatever is assumed is a field of `ClusterMachine`, and none is fitted to a curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, exp, log, log1p, sqrt

from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.scaling.tiles import Exchange, Grid, TilePlan, TileStage

STEPS = 2_000
"""Of the integral over the slowest machine's time."""


@dataclass(frozen=True)
class ClusterMachine:
    """One machine of a cluster.

    Attributes:
        products_per_s: multiply-adds of all its cores, on data in cache.
        memory_bytes_per_s: that all its cores read or write.
        link_bytes_per_s: in each direction.
        latency_s: of a message.
        message_s: of processor time for each message that is sent or received.
        spread: standard deviation of a phase's time over its mean, from machine to machine and from phase to phase.
    """

    products_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    latency_s: float = 0.0
    message_s: float = 0.0
    spread: float = 0.0


def batch_seconds(plan: TilePlan, machine: ClusterMachine, batch: int) -> float:
    """Returns how long a mini-batch takes: forward, errors back, gradients, and every partition's update."""
    seconds = _exchange_s(plan.head, machine, batch)
    for stage in plan.stages:
        slowest = slowest_of(stage.working, machine.spread)
        seconds += _forward_s(stage, machine, batch) * slowest + _exchange_s(stage.inputs, machine, batch)
        seconds += _backward_s(stage, machine, batch) * slowest
        if stage.errors_go_back:
            seconds += _exchange_s(stage.inputs, machine, batch)
    held_bytes = sum(stage.parameters for stage in plan.stages) * ELEMENT_BYTES
    return seconds + 3 * held_bytes / machine.memory_bytes_per_s  # the gradient and weights are read, weights written


def best_grid(partitions: int) -> Grid:
    """Returns the grid of so many partitions whose tiles are most nearly square."""
    columns = max(one for one in range(1, int(sqrt(partitions)) + 1) if partitions % one == 0)
    return Grid(partitions // columns, columns)


def slowest_of(count: int, spread: float) -> float:
    """Returns the mean of the largest of so many log-normal factors with mean 1 and this standard deviation."""
    if count < 2 or not spread:
        return 1.0
    variance = log1p(spread * spread)
    middle, deviation = -variance / 2, sqrt(variance)
    top = exp(middle + 8 * deviation)
    step = top / STEPS
    inside = (0.5 * (1 + erf((log((n + 0.5) * step) - middle) / deviation / sqrt(2))) for n in range(STEPS))
    return sum((1 - share**count) * step for share in inside)  # the integral of P(largest > x)


def _forward_s(stage: TileStage, machine: ClusterMachine, batch: int) -> float:
    moved_bytes = (stage.parameters + stage.moved * batch) * ELEMENT_BYTES
    return max(stage.products * batch / machine.products_per_s, moved_bytes / machine.memory_bytes_per_s)


def _backward_s(stage: TileStage, machine: ClusterMachine, batch: int) -> float:
    """The error of what came in, if it goes on, and the gradient: each as many products as the way forward."""
    passes = int(stage.errors_go_back) + int(stage.products > 0)
    moved_bytes = (stage.parameters * (passes + 1) + stage.moved * batch * passes) * ELEMENT_BYTES
    return max(stage.products * passes * batch / machine.products_per_s, moved_bytes / machine.memory_bytes_per_s)


def _exchange_s(exchange: Exchange, machine: ClusterMachine, batch: int) -> float:
    if not exchange.messages:
        return 0.0
    carried_s = exchange.elements * batch * ELEMENT_BYTES / machine.link_bytes_per_s
    return machine.latency_s + carried_s + 2 * exchange.messages * machine.message_s  # sent and received

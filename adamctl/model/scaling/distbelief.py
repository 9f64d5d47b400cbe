"""DistBelief's networks and what is assumed of its machines, to plan its figure 3 (DistBelief 5).

The paper gives the networks' layers, "no more than 20 cores per machine", and an average use of 16. It does not give
processors, network, mini-batches, pooling or the strides of its image networks. These are assumed here, from what such
machines were in 2011 and 2012, and from the numbers of parameters that the paper does give; none is fitted to a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from adamctl.model.description import Dense, L2Pool2D, Local2D, LocalContrastNorm, Logistic, Model, Softmax
from adamctl.model.scaling.speedup import ClusterMachine, batch_seconds, best_grid
from adamctl.model.scaling.tiles import Grid, tile_plan

BATCH = 100
CORES, CLOCK_HZ, PRODUCTS_PER_CYCLE, OF_PEAK = 16, 2.3e9, 4, 0.5
MACHINE = ClusterMachine(
    products_per_s=CORES * CLOCK_HZ * PRODUCTS_PER_CYCLE * OF_PEAK,
    memory_bytes_per_s=40e9,
    link_bytes_per_s=125e6,
    latency_s=100e-6,
    message_s=50e-6,
    spread=0.1,
)
ASSUMED: Mapping[str, str] = {
    "cores": "16 at work in each machine: the paper's average; it allowed 20",
    "speed": "2.3 GHz, four products a cycle (SSE), half of that reached: 74 G products/s a machine",
    "memory": "40 GB/s a machine, two sockets of three channels",
    "network": "1 Gbit/s in each direction, 100 us: what most machines had",
    "messages": "50 us of a processor for each that is sent, and received: a remote call of that time",
    "spread": "phases differ from machine to machine by 10%; each waits for the slowest",
    "batch": f"{BATCH} examples, one mini-batch under way at a time",
    "pooling": "6 x 6, 1, 1 and 3 apart, and normalisation of 5 x 5: with 36 maps that is 1.68 billion parameters",
    "tiles": "partitions of image networks are tiles, as nearly square as can be; dense layers are cut by units",
}
"""What is assumed, in words."""
MAPS = (8, 16, 36)
"""Nodes on each patch of the image networks."""
SAID_OF_SPEECH, SAID_OF_IMAGES = (8, 2.2), (81, 12.0)
"""What the paper's text says of speech and of the largest image network, which gains more: machines and speed-up."""


def speech() -> Model:
    """Returns the network for speech: 42 million parameters."""
    hidden = tuple(Dense(2560, activation="sigmoid") for _ in range(4))
    return Model((11 * 40,), (*hidden, Softmax(8192)))


def images(maps: int) -> Model:
    """Returns a network for images of 100 x 100 pixels with so many nodes on each patch: the paper has 8 to 36."""
    layers: list[Local2D | L2Pool2D | LocalContrastNorm] = []
    for stride in (1, 1, 3):
        layers += [Local2D(maps, 10, activation="relu"), L2Pool2D(6, stride=stride), LocalContrastNorm(5)]
    return Model((100, 100, 3), (*layers, Logistic(21_000)), loss="logistic")


class Point(NamedTuple):
    """How many times as fast as one machine so many are."""

    machines: int
    speed_up: float


def curve(
    model: Model, machines: Sequence[int], machine: ClusterMachine = MACHINE, batch: int = BATCH, by_rows: bool = False
) -> tuple[Point, ...]:
    """Returns a curve of figure 3; `by_rows`: with the cuts of our runtime in place of tiles."""

    def seconds(count: int) -> float:
        grid = Grid(count, 1) if by_rows else best_grid(count)
        return batch_seconds(tile_plan(model, grid), machine, batch)

    alone_s = seconds(1)
    return tuple(Point(count, alone_s / seconds(count)) for count in machines)

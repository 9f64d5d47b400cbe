"""What partitions that are tiles of rows and columns compute and exchange: counts, from the network alone (pure).

The runtime cuts images by rows only (docs/partitions.md). For locally connected networks, which share no weights, tiles
would exchange less: a strip of one row reads nine rows of its neighbours for a patch of ten, a tile of nine by nine
reads a margin. So the planner prices both (DistBelief 3, figure 3); a grid of N x 1 is what the runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Local2D, Model, pair
from adamctl.model.partition.cuts import even
from adamctl.model.partition.geometry import Range
from adamctl.model.partition.plan import EXCHANGED_ELEMENTS, head_kind
from adamctl.model.partition.stages import Stage, stages_of


class Grid(NamedTuple):
    """How images are cut: so many ranges of rows by so many of columns. Dense layers are cut by units in as many."""

    rows: int
    columns: int

    @property
    def partitions(self) -> int:
        return self.rows * self.columns


class Exchange(NamedTuple):
    """What one partition sends or receives before a stage, at most.

    Attributes:
        elements: for each example.
        messages: to or from how many partitions.
    """

    elements: int = 0
    messages: int = 0

    def or_more(self, other: Exchange) -> Exchange:
        return Exchange(max(self.elements, other.elements), max(self.messages, other.messages))


class TileStage(NamedTuple):
    """A stage, of the partition that has most.

    Attributes:
        name: of its first layer.
        products: multiply-adds of an example on the way forward; 0 without parameters.
        moved: elements of inputs and outputs.
        parameters: that it holds.
        working: partitions that have a part of it.
        inputs: what is exchanged before it; the same comes back as errors if `errors_go_back`.
    """

    name: str
    products: int
    moved: int
    parameters: int
    working: int
    inputs: Exchange
    errors_go_back: bool


class TilePlan(NamedTuple):
    """A network over a grid. `head`: what is exchanged before the first error is known."""

    grid: Grid
    stages: tuple[TileStage, ...]
    head: Exchange


class _Axis(NamedTuple):
    """One dimension, cut. `made`, `read`: ranges of outputs and inputs of each part; nothing where both are equal."""

    made: tuple[Range, ...]
    read: tuple[Range, ...]


def tile_plan(model: Model, grid: Grid) -> TilePlan:
    """Returns what a network's partitions compute and exchange.

    Raises:
        ConfigurationError: it has convolutions, whose weights tiles would share; or windows or images that are not
            square, where there are columns.
    """
    stages = stages_of(model)
    for stage in stages:
        _check(stage, grid)
    found: list[TileStage] = []
    before: tuple[_Axis, ...] = ()
    has_parameters = False
    for stage in stages:
        axes = _axes(stage, grid)
        inputs = _exchanged(stage, before, axes) if found else Exchange()
        found.append(_counted(stage, axes, inputs, has_parameters))
        before, has_parameters = axes, has_parameters or bool(stage.tensors)
    return TilePlan(grid, tuple(found), _head(model, found[-1].working, _longest(before[0].made)))


def _ranges(extent: int, parts: int) -> tuple[Range, ...]:
    """Returns ranges that are as equal as can be; some are empty where there are more parts than places."""
    return tuple(pairwise((0, *even(extent, parts), extent)))


def _axes(stage: Stage, grid: Grid) -> tuple[_Axis, ...]:
    """Returns the dimensions in which a stage is cut: rows and columns, or units."""
    if len(stage.output) == 1:
        made = _ranges(stage.output[0], grid.partitions)
        whole = prod(stage.input)
        return (_Axis(made, tuple((0, whole) if start < stop else (0, 0) for start, stop in made)),)
    axes = []
    for dimension, parts in enumerate(grid):
        made = _ranges(stage.output[dimension], parts)
        extent = stage.input[dimension]
        read = tuple(stage.window.reads(*one, extent) if one[0] < one[1] else (0, 0) for one in made)
        if parts == 1:  # as in the runtime's plans, also what no window reaches
            read = ((0, extent),)
        axes.append(_Axis(made, read))
    return tuple(axes)


def _counted(stage: Stage, axes: Sequence[_Axis], inputs: Exchange, errors_go_back: bool) -> TileStage:
    outputs = prod(_longest(axis.made) for axis in axes) * (stage.output[-1] if len(axes) > 1 else 1)
    reads = prod(_longest(axis.read) for axis in axes) * (stage.input[-1] if len(axes) > 1 else 1)
    products = parameters = 0
    if stage.tensors:
        fan_in = prod(stage.input)
        if isinstance(stage.layer, Local2D):
            fan_in = prod(pair(stage.layer.kernel)) * stage.input[-1]
        products, parameters = outputs * fan_in, outputs * (fan_in + 1)
    working = prod(sum(start < stop for start, stop in axis.made) for axis in axes)
    return TileStage(stage.name, products, outputs + reads, parameters, working, inputs, errors_go_back)


def _exchanged(stage: Stage, before: Sequence[_Axis], axes: Sequence[_Axis]) -> Exchange:
    """Returns the most that one partition sends or receives of a stage's inputs."""
    if len(before) == 2 and len(axes) == 1:
        return _gathered(stage, before, axes[0])
    pairs = [(old.made, new.read) for old, new in zip(before, axes, strict=True)]
    overlaps = [[[_common(one, other) for other in made] for one in read] for made, read in pairs]
    maps = stage.input[-1] if len(axes) > 1 else 1
    received = _most([[_received(row, n) for n, row in enumerate(table)] for table in overlaps], maps)
    turned = [[list(column) for column in zip(*table, strict=True)] for table in overlaps]
    sent = _most([[_received(row, n) for n, row in enumerate(table)] for table in turned], maps)
    return received.or_more(sent)


def _received(overlaps: Sequence[int], own: int) -> tuple[int, int, int, int]:
    """Returns (all, own, partners, whether its own is one) of what a part reads along one dimension, or gives."""
    return sum(overlaps), overlaps[own], sum(one > 0 for one in overlaps), int(overlaps[own] > 0)


def _most(axes: Sequence[Sequence[tuple[int, int, int, int]]], maps: int) -> Exchange:
    """Returns the most over all tiles of what is not their own."""
    found = Exchange()
    first, second = (*axes, [(1, 1, 1, 1)])[:2]
    for along in first:
        for across in second:
            everything, own, partners, one = (a * b for a, b in zip(along, across, strict=True))
            found = found.or_more(Exchange((everything - own) * maps, partners - one))
    return found


def _gathered(stage: Stage, before: Sequence[_Axis], units: _Axis) -> Exchange:
    """Returns what is exchanged where all read the whole image: each gets what is not its own, and sends its own."""
    maps, whole = stage.input[-1], prod(stage.input)
    tiles = [(r[1] - r[0]) * (c[1] - c[0]) * maps for r in before[0].made for c in before[1].made]
    working = [start < stop for start, stop in units.made]
    readers, givers = sum(working), sum(size > 0 for size in tiles)
    found = Exchange()
    for size, works in zip(tiles, working, strict=True):
        to, of = readers - works, givers - (size > 0)
        found = found.or_more(Exchange(size * to, to if size else 0))
        if works:
            found = found.or_more(Exchange(whole - size, of))
    return found


def _head(model: Model, holders: int, units: int) -> Exchange:
    kind = head_kind(model, holders)
    if kind in ("whole", "separate"):
        return Exchange()
    return Exchange((EXCHANGED_ELEMENTS if kind == "exchange" else units) * (holders - 1), holders - 1)


def _check(stage: Stage, grid: Grid) -> None:
    if isinstance(stage.layer, Conv2D):
        raise ConfigurationError(
            f"{stage.name}: expected layers that share no weights, such as local2d; found a convolution, which is "
            "cut by rows or maps"
        )
    sizes = {name: getattr(stage.layer, name, 1) for name in ("kernel", "size", "stride")}
    uneven = [name for name, value in sizes.items() if value is not None and len(set(pair(value))) > 1]
    if grid.columns > 1 and len(stage.output) == 3 and (uneven or stage.input[0] != stage.input[1]):
        what = uneven[0] if uneven else "image"
        raise ConfigurationError(f"{stage.name}: expected a square {what} for tiles of rows and columns; found another")


def _longest(ranges: Sequence[Range]) -> int:
    return max(stop - start for start, stop in ranges)


def _common(one: Range, other: Range) -> int:
    return max(min(one[1], other[1]) - max(one[0], other[0]), 0)

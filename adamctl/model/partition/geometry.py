"""What a partition computes, reads and holds of a stage: regions of arrays, from the cut alone.

The same geometry as that of `Operation.slice` in the kernels, which must not be imported here; a test compares the two
for every layer and axis.
"""

from __future__ import annotations

from math import prod
from typing import TypeAlias

import msgspec

from adamctl.model.description import Conv2D, Local2D
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.stages import Stage

Range: TypeAlias = tuple[int, int]
"""[start, stop) along one axis."""
Region: TypeAlias = tuple[Range, ...]
"""A range per axis, the batch not counted."""


class StagePart(msgspec.Struct, frozen=True, array_like=True):
    """What one partition has of a stage; all None if it has nothing.

    Attributes:
        outputs: region of the stage's outputs that it computes.
        inputs: region of the stage's input that it reads, halo included, zeros around the image left out.
        convolved: region of the convolution's outputs that it computes, where pooling belongs to the stage.
        parameters: per tensor of the stage, the region that it computes with.
        owned: per tensor, the range of axis 0 that it pushes. All of `parameters` where no other partition holds them.
    """

    outputs: Region | None = None
    inputs: Region | None = None
    convolved: Region | None = None
    parameters: tuple[Region | None, ...] = ()
    owned: tuple[Range | None, ...] = ()


def region_size(region: Region | None) -> int:
    """Returns how many elements of one example a region has."""
    return 0 if region is None else prod(stop - start for start, stop in region)


def common(one: Region | None, other: Region | None) -> Region | None:
    """Returns the region that two regions of an array share, None if they share nothing."""
    if one is None or other is None:
        return None
    shared = []
    for first, second in zip(one, other, strict=True):
        start = first[0] if first[0] > second[0] else second[0]
        stop = first[1] if first[1] < second[1] else second[1]
        if start >= stop:
            return None
        shared.append((start, stop))
    return tuple(shared)


def everything(shape: tuple[int, ...]) -> Region:
    """Returns the region that is a whole array."""
    return tuple((0, extent) for extent in shape)


def parts_of(stage: Stage, cut: Cut, partitions: int, tensors: tuple[tuple[int, ...], ...]) -> tuple[StagePart, ...]:
    """Returns the parts of a stage, one per partition.

    Args:
        cut: a complete cut of the stage.
        tensors: the shapes of its parameters.
    """
    nothing = StagePart(parameters=(None,) * len(tensors), owned=(None,) * len(tensors))
    if cut.axis == "whole":
        held = tuple(everything(shape) for shape in tensors)
        convolved = everything(stage.layers[0].output) if stage.pooling else None
        owned = tuple((0, shape[0]) for shape in tensors)
        part = StagePart(everything(stage.output), everything(stage.input), convolved, held, owned)
        return tuple(part if partition == cut.whole else nothing for partition in range(partitions))
    extent = stage.extent(cut.axis)
    ranges = [cut.range_of(partition, extent) for partition in range(partitions)]
    parts = [_part(stage, cut.axis, made, tensors) if made[0] < made[1] else nothing for made in ranges]
    shared = tuple(_shares(stage, place, cut.axis) for place in range(len(tensors)))
    return tuple(_shared(parts, tensors, shared) if any(shared) else parts)


def _part(stage: Stage, axis: str, made: Range, tensors: tuple[tuple[int, ...], ...]) -> StagePart:
    outputs = _along(stage.output, axis, made)
    is_whole, convolved = made == (0, stage.extent(axis)), None
    if stage.pooling is not None:
        shape = stage.layers[0].output
        if axis == "rows":
            made = (0, shape[0]) if is_whole else stage.pooling.reads(*made, shape[0])
            is_whole = made == (0, shape[0])
        convolved = _along(shape, axis, made)
    # Who makes all outputs of a layer runs it whole, and reads rows, too, that no window reaches.
    inputs = everything(stage.input) if is_whole else _inputs(stage, axis, made)
    shared = [_shares(stage, place, axis) for place in range(len(tensors))]
    held: tuple[Region | None, ...] = tuple(
        everything(shape) if whole else (made, *everything(shape[1:]))
        for shape, whole in zip(tensors, shared, strict=True)
    )
    return StagePart(outputs, inputs, convolved, held, tuple(None if whole else made for whole in shared))


def _inputs(stage: Stage, axis: str, made: Range) -> Region:
    """Returns what outputs [start, stop) of the first layer read."""
    shape = stage.input
    if stage.own is not None:
        return stage.own.piece(axis, *made).inputs
    if axis == "units" and not stage.follows:
        return everything(shape)
    if axis == "rows":
        return _along(shape, axis, stage.window.reads(*made, shape[0]))
    if not stage.reads_all_maps:
        return _along(shape, axis, made)
    if not isinstance(stage.layer, Conv2D):
        return everything(shape)
    maps, channels = stage.layer.filters // stage.groups, shape[2] // stage.groups
    return _along(shape, "maps", (made[0] // maps * channels, -(-made[1] // maps) * channels))


def _along(shape: tuple[int, ...], axis: str, made: Range) -> Region:
    whole = everything(shape)
    return (*whole[:-1], made) if axis == "maps" else (made, *whole[1:])


def _shares(stage: Stage, place: int, axis: str) -> bool:
    """Whether every part computes with all of one of the stage's parameters."""
    if stage.own is not None:
        return stage.own.shares(place, axis)
    return axis == "rows" and not isinstance(stage.layer, Local2D)


def _shared(parts: list[StagePart], tensors: tuple[tuple[int, ...], ...], shared: tuple[bool, ...]) -> list[StagePart]:
    """Spreads what all parts hold evenly over them as owners, in whole rows of axis 0."""
    holders = [number for number, part in enumerate(parts) if part.outputs is not None]
    spread = list(parts)
    for place, number in enumerate(holders):
        owned: list[Range | None] = []
        for shape, kept, whole in zip(tensors, parts[number].owned, shared, strict=True):
            if not whole:
                owned.append(kept)
                continue
            start, stop = (shape[0] * bound // len(holders) for bound in (place, place + 1))
            owned.append((start, stop) if start < stop else None)
        spread[number] = msgspec.structs.replace(parts[number], owned=tuple(owned))
    return spread

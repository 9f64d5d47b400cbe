"""Regions of a layer's outputs, and blocks of them on their way from one array to another.

A region is a tuple of half-open ranges, one per axis, the batch not counted. Each partition holds arrays of its own
regions; what another one needs is the intersection, a block, which is copied to its place among the inputs or, on the
way back, added to what other partitions found for the same error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import Backend, compiled_if
from adamctl.kernels.native import Call, NativeCall
from adamctl.kernels.operation import Array
from adamctl.kernels.slicing import Region

Range: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Range, ...]
"""A region with explicit bounds: (start, stop) of each axis."""

AXES_MAX = 2  # of a block besides the batch: runs, and their length


def box_of(region: Region, shape: Sequence[int]) -> Box:
    """Returns a region of an array of this shape with explicit bounds."""
    return tuple(part.indices(size)[:2] for part, size in zip(region, shape, strict=True))


def whole_box(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def extents(box: Box) -> tuple[int, ...]:
    """Returns the shape of an array of a region."""
    return tuple(stop - start for start, stop in box)


def intersection(one: Box, other: Box) -> Box | None:
    """Returns what two regions have in common; None if that is nothing."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


class Held(NamedTuple):
    """An array [batch, *extents of `box`] that holds a region of a layer's outputs, or of the error at them."""

    array: Array
    box: Box


class BlockMove(NamedTuple):
    """A block copied, or added, from one array to another. Both are C-contiguous.

    Attributes:
        target, source: the whole arrays.
        box: the block.
        adds: added, not copied.
    """

    target: Held
    source: Held
    box: Box
    adds: bool = False

    def make(self) -> None:
        """Moves the block by numpy: the reference."""
        target = self.target.array[(slice(None), *_inside(self.box, self.target.box))]
        source = self.source.array[(slice(None), *_inside(self.box, self.source.box))]
        if self.adds:
            target += source
        else:
            target[...] = source

    def native(self, backend: Backend) -> list[Call] | None:
        """Returns the move as a native call; None if nothing is compiled."""
        compiled = compiled_if(backend, "regions")
        if compiled is None:
            return None
        flat = [held.array.reshape(held.array.size) for held in (self.target, self.source)]
        kernel = compiled.add_block if self.adds else compiled.copy_block
        return [NativeCall(kernel, (*flat, self.places()))]

    def places(self) -> NDArray[np.int64]:
        """Returns where the block lies in both arrays, as `adamctl.kernels.compiled.regions` has it."""
        batch = len(self.target.array)
        lengths = [batch, *extents(self.box)]
        strides = [_strides(held) for held in (self.target, self.source)]
        axes = [(lengths[0], strides[0][0], strides[1][0])]
        for length, to, at in zip(lengths[1:], strides[0][1:], strides[1][1:], strict=True):
            before_length, before_to, before_at = axes[-1]
            if len(axes) > 1 and before_to == to * length and before_at == at * length:
                axes[-1] = (before_length * length, to, at)  # the two axes are one in both arrays
            elif len(axes) > 1 and before_length == 1:
                axes[-1] = (length, to, at)
            else:
                axes.append((length, to, at))
        if len(axes) <= AXES_MAX:
            axes.insert(1, (1, 0, 0))
        if len(axes) > AXES_MAX + 1 or axes[-1][1:] != (1, 1):
            raise ValueError(f"expected a block cut along rows and maps; found {self.box}")
        (_, to_example, at_example), (runs, to_run, at_run), (length, _, _) = axes
        starts = [_start(self.box, held) for held in (self.target, self.source)]
        return np.array(
            [
                [starts[0], to_example, to_run, batch, runs, length],
                [starts[1], at_example, at_run, batch, runs, length],
            ],
            np.int64,
        )


class Clear(NamedTuple):
    """Sets an array to zero."""

    target: Held

    def make(self) -> None:
        """As `BlockMove.make`."""
        self.target.array[...] = 0

    def native(self, backend: Backend) -> list[Call] | None:
        """As `BlockMove.native`."""
        compiled, array = compiled_if(backend, "regions"), self.target.array
        return None if compiled is None else [NativeCall(compiled.clear, (array.reshape(array.size),))]


def _inside(box: Box, whole: Box) -> tuple[slice, ...]:
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, whole, strict=True))


def _strides(held: Held) -> list[int]:
    """Returns the distances between neighbours along each axis, the batch first, in elements."""
    shape = extents(held.box)
    return [prod(shape[axis:]) for axis in range(len(shape) + 1)]


def _start(box: Box, held: Held) -> int:
    strides = _strides(held)[1:]
    return sum((start - first) * stride for (start, _), (first, _), stride in zip(box, held.box, strides, strict=True))

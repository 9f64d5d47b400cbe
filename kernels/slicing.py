"""A part of a layer's outputs, and the part of the inputs that it reads.

Models are split over workers (Adam 3.2.5, DistBelief 3): one holds some of the maps of a convolution, some of the units
of a dense layer, or some rows of a locally connected one. `Operation.slice` returns a smaller operation of the same
kind, and its part of the whole layer (`SlicedOperation`): which region of the inputs it reads, including a halo of
rows, and which part of each parameter it holds. Slices that cover a layer's outputs compute together what the layer
computes: outputs side by side; input errors added where regions overlap; gradients side by side for different parts of
a parameter, and added where they share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Axis: TypeAlias = Literal["units", "maps", "rows"]
Region: TypeAlias = tuple[slice, ...]
"""An index expression, one slice per axis, the batch not counted."""


@dataclass(frozen=True)
class OutputSlice:
    """Outputs [start, stop) along one axis: `units` of a vector, `maps` (last axis) or `rows` (first) of an image."""

    axis: Axis
    start: int
    stop: int


def region_shape(shape: tuple[int, ...], region: Region) -> tuple[int, ...]:
    """Returns the shape of a region of an array of this shape."""
    return tuple(len(range(*part.indices(size))) for size, part in zip(shape, region, strict=True))


def check_slice(part: OutputSlice, output_shape: tuple[int, ...], axes: tuple[Axis, ...], operation: str) -> None:
    """Checks that a layer can be cut into a slice.

    Raises:
        ValueError: the operation cannot be cut along that axis, or the range is empty or not inside the outputs.
    """
    if part.axis not in axes:
        raise ValueError(f"{operation}: expected a slice of {' or '.join(axes)}; found one of {part.axis}")
    size = output_shape[0] if part.axis in ("rows", "units") else output_shape[-1]
    if not 0 <= part.start < part.stop <= size:
        raise ValueError(f"{operation}: expected {part.axis} within 0 to {size}; found {part.start} to {part.stop}")


def halo(start: int, stop: int, size: int, window: int, stride: int, before: int = 0) -> tuple[slice, tuple[int, int]]:
    """Returns the part of an axis that windows [start, stop) read, including the overlap with neighbours (the halo).

    Args:
        start, stop: which windows.
        size: pixels of the axis.
        window, stride: size of a window, and distance between window starts, in pixels.
        before: zeros before the first pixel.

    Returns:
        the pixels they read, and how many zeros lie before and after those: (0, 0) inside the image.
    """
    first, last = start * stride - before, (stop - 1) * stride - before + window
    return slice(max(first, 0), min(last, size)), (max(-first, 0), max(last - size, 0))

"""What a part of a layer of the user's own gets: where its inputs lie among zeros, what is inside, its state."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.model.custom.interface import Part, Range, Shape, Window
from adamctl.model.custom.resolved import Piece, Region, Resolved, asked, is_shape


def placed_region(own: Resolved, piece: Piece) -> Region | None:
    """Returns the region of the image, zeros around it included, that windows read; None if that is the inputs."""
    if not isinstance(own.connectivity, Window):
        return None
    axes: list[Range] = []
    for axis in (0, 1):
        placed = own.placed(axis, *piece.outputs[axis])
        first = placed.reads[0] - placed.before
        axes.append((first, first + placed.extent))
    whole = (*axes, piece.inputs[2])
    return None if whole == piece.inputs else whole


def part_of(own: Resolved, piece: Piece) -> Part:
    """Returns what the user's code is told of a part."""
    inside, counts = None, None
    read, outputs = placed_region(own, piece) or piece.inputs, _extents(piece.outputs)
    if isinstance(own.connectivity, Window):
        lines = [_inside(read[axis], own.input[axis]) for axis in (0, 1)]
        inside = np.outer(*lines)
        counts = np.outer(*(_sums(lines[axis], *own.windows(axis)[:2], outputs[axis]) for axis in (0, 1)))
        for array in (inside, counts):
            array.flags.writeable = False
    return Part(own.input, own.output, piece.inputs, piece.outputs, _extents(read), outputs, inside, counts)


def state_of(own: Resolved, part: Part) -> dict[str, Shape]:
    """Returns name -> shape of the state of a part, for one example.

    Raises:
        ConfigurationError: the class says something else.
    """
    found = asked(own.layer, "state", part)
    is_mapping = isinstance(found, Mapping)
    if not is_mapping or not all(isinstance(name, str) and is_shape(one) for name, one in found.items()):
        expected = "expected a dictionary name -> shape of whole numbers of at least 1"
        raise ConfigurationError(f"{own.name}: state: {expected}; found {found!r:.80}")
    return {name: tuple(shape) for name, shape in found.items()}


def kept_elements(own: Resolved, piece: Piece, needs_input_error: bool) -> int:
    """Returns the elements for one example that a part keeps beside its outputs and the error at its inputs."""
    part = part_of(own, piece)
    placed = 0 if placed_region(own, piece) is None else prod(part.input_shape) * (1 + needs_input_error)
    return placed + sum(prod(shape) for shape in state_of(own, part).values())


def _extents(region: Region) -> Shape:
    return tuple(stop - start for start, stop in region)


def _inside(read: Range, extent: int) -> NDArray[np.float32]:
    """Returns 1 for places of an axis that lie inside the image, 0 for others."""
    places = np.arange(*read)
    return ((places >= 0) & (places < extent)).astype(np.float32)


def _sums(line: NDArray[np.float32], size: int, stride: int, windows: int) -> NDArray[np.float32]:
    """Returns the sum of each window along an axis."""
    return np.array([line[first * stride : first * stride + size].sum() for first in range(windows)], np.float32)

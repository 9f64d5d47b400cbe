"""A cut of a layer over the partitions of a replica (Adam 3.2, DistBelief 3), and what can be wrong with one.

A cut as a user writes it may leave its boundaries out; `complete` checks it against the layer and puts them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.model.partition.stages import CutAxis, Stage

PARTITIONS_MAX = 256


class Cut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the outputs of a layer are cut: ranges along one axis, partition after partition, or all in one partition.

    Attributes:
        axis: `rows` or `maps` of an image, `units` of a vector, `groups` of a convolution, `whole` for no cut.
        at: where the second partition's range begins, the third's, and so on; equal numbers leave a partition nothing.
            Unset: even ranges.
        whole: the partition that holds the layer, if it is not cut.
    """

    axis: CutAxis = "whole"
    at: tuple[int, ...] | None = None
    whole: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.at, list):
            msgspec.structs.force_setattr(self, "at", tuple(self.at))

    def range_of(self, partition: int, extent: int) -> tuple[int, int]:
        """Returns the range [start, stop) of one partition along the axis; only of a complete cut that is not whole."""
        assert self.at is not None
        bounds = (0, *self.at, extent)
        return bounds[partition], bounds[partition + 1]

    def __str__(self) -> str:
        if self.axis == "whole":
            return f"whole in {self.whole}"
        return self.axis if self.at is None else f"{self.axis} at {', '.join(map(str, self.at))}"


def even(extent: int, partitions: int) -> tuple[int, ...]:
    """Returns the boundaries of ranges that differ by at most one."""
    return tuple(extent * number // partitions for number in range(1, partitions))


def even_maps(stage: Stage, partitions: int) -> tuple[int, ...]:
    """Returns even boundaries of maps: of whole groups or, with fewer groups than partitions, within one."""
    maps, groups = stage.extent("maps"), stage.groups
    size = maps // groups
    if groups >= partitions:
        return tuple(size * bound for bound in even(groups, partitions))
    shares = even(partitions, groups)
    starts: list[int] = []
    for group, (first, last) in enumerate(pairwise((0, *shares, partitions))):
        starts += [group * size + bound for bound in (0, *even(size, last - first))]
    return tuple(starts[1:])


def complete(stage: Stage, cut: Cut, partitions: int) -> Cut:
    """Returns a user's cut of a stage with its boundaries, in maps where it names groups.

    Raises:
        ConfigurationError: the layer cannot be cut so, or not into that many parts.
    """
    where = f"partition.{stage.name}"
    if cut.axis == "whole":
        return _whole(where, cut, partitions)
    if cut.whole is not None:
        raise ConfigurationError(f"{where}: found both whole and axis; expected one of them")
    if cut.axis not in stage.axes:
        allowed = f"{', '.join(stage.axes)} or whole"
        raise ConfigurationError(f"{where}: found a cut by {cut.axis}; expected {allowed}{stage.why_not(cut.axis)}")
    extent = stage.groups if cut.axis == "groups" else stage.extent(cut.axis)
    if cut.at is None:
        if extent < partitions:
            raise ConfigurationError(
                f"{where}: found {partitions} partitions for {extent} {cut.axis}; expected at most {extent}; use fewer "
                "partitions, cut along another axis, or set whole = 0"
            )
        at = even_maps(stage, partitions) if cut.axis == "maps" else even(extent, partitions)
    else:
        at = _checked(where, cut.at, extent, cut.axis, partitions)
    if cut.axis == "groups":
        size = stage.extent("maps") // stage.groups
        return Cut("maps", tuple(bound * size for bound in at))
    if cut.axis == "maps":
        _check_groups(where, stage, at)
    return Cut(cut.axis, at)


def _whole(where: str, cut: Cut, partitions: int) -> Cut:
    if cut.at is not None:
        raise ConfigurationError(f"{where}: found at without axis; expected axis = one of rows, maps, units, groups")
    if cut.whole is None or not 0 <= cut.whole < partitions:
        found = "no partition" if cut.whole is None else cut.whole
        raise ConfigurationError(f"{where}: expected whole = a partition from 0 to {partitions - 1}; found {found}")
    return cut


def _checked(where: str, at: Sequence[int], extent: int, axis: str, partitions: int) -> tuple[int, ...]:
    if len(at) != partitions - 1:
        raise ConfigurationError(
            f"{where}: expected {partitions - 1} boundaries for {partitions} partitions; found {len(at)}: {list(at)}"
        )
    if any(bound < 0 or bound > extent for bound in at):
        raise ConfigurationError(f"{where}: expected boundaries within its {extent} {axis}; found {list(at)}")
    if list(at) != sorted(at):
        raise ConfigurationError(f"{where}: expected boundaries in ascending order; found {list(at)}")
    return tuple(at)


def _check_groups(where: str, stage: Stage, at: tuple[int, ...]) -> None:
    maps = stage.extent("maps")
    size = maps // stage.groups
    for start, stop in pairwise((0, *at, maps)):
        crosses = -(-stop // size) - start // size > 1
        if start < stop and crosses and (start % size or stop % size):
            raise ConfigurationError(
                f"{where}: expected maps of whole groups of {size}, or of one group; found {start} to {stop}"
            )

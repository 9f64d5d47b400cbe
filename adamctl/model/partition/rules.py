"""Where a network is cut unless the user says otherwise, and the plan that follows.

Convolutions with their pooling are cut by rows, whose neighbours exchange a halo; by maps where there are fewer than
two rows for each partition, or where maps cost fewer bytes. Pooling alone and dropout are cut as the stage before.
Local contrast normalisation and locally connected layers are cut by rows, dense ones by units: shards are ranges of
outputs, so never by inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from itertools import pairwise

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Model
from adamctl.model.layout import tensors_of
from adamctl.model.partition.cuts import PARTITIONS_MAX, Cut, complete
from adamctl.model.partition.geometry import StagePart, common, parts_of, region_size
from adamctl.model.partition.plan import PartitionPlan, StagePlan, head_kind
from adamctl.model.partition.stages import CutAxis, Stage, stages_of

Shapes = tuple[tuple[int, ...], ...]


def make_plan(model: Model, partitions: int, cuts: Mapping[str, Cut | CutAxis] | None = None) -> PartitionPlan:
    """Returns the plan of a network over this many partitions.

    Args:
        cuts: layer name (`conv2d1`, as in `adamctl.model.shapes`) -> cut, where it is not to follow the rules. With one
            partition, cuts are not looked at beyond their names and axes.

    Raises:
        ConfigurationError: the layers do not fit together; a layer is not known, or cannot be cut so; there are more
            partitions than rows, maps or units.
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ConfigurationError(f"cluster.partitions: expected 1 to {PARTITIONS_MAX}; found {partitions}")
    stages = stages_of(model)
    wanted = {name: Cut(cut) if isinstance(cut, str) else cut for name, cut in (cuts or {}).items()}
    _check_names(stages, wanted)
    shapes = [tensor.shape for tensor in tensors_of(model)]
    plans: list[StagePlan] = []
    for stage in stages:
        mine = tuple(shapes[tensor] for tensor in stage.tensors)
        before = plans[-1] if plans else None
        if partitions == 1:
            cut = _of_one(stage, wanted.get(stage.name))
        elif stage.name in wanted:
            cut = complete(stage, wanted[stage.name], partitions)
        else:
            cut = _default(stage, partitions, before, mine)
        plans.append(_planned(stage, cut, partitions, mine))
    return PartitionPlan(partitions, model, tuple(plans), head_kind(model, len(plans[-1].holders)))


def cuts_for(cuts: Mapping[str, Cut | CutAxis], partitions: int) -> dict[str, Cut]:
    """Returns a user's cuts for another number of partitions: boundaries that are not for it become even ones."""
    found: dict[str, Cut] = {}
    for name, cut in cuts.items():
        cut = Cut(cut) if isinstance(cut, str) else cut
        if cut.at is not None and len(cut.at) != partitions - 1:
            cut = Cut(cut.axis)
        if cut.whole is None or cut.whole < partitions:
            found[name] = cut
    return found


def _planned(stage: Stage, cut: Cut, partitions: int, shapes: Shapes) -> StagePlan:
    layers = tuple(shape.index for shape in stage.layers)
    parts = parts_of(stage, cut, partitions, shapes)
    return StagePlan(stage.index, stage.name, stage.kind, layers, stage.tensors, stage.input, stage.output, cut, parts)


def _check_names(stages: tuple[Stage, ...], cuts: Mapping[str, Cut]) -> None:
    names = [stage.name for stage in stages]
    for name in cuts:
        for stage in stages:
            if name != stage.name and name in [shape.name for shape in stage.layers]:
                raise ConfigurationError(f"partition.{name}: it is cut together with {stage.name}; give that one's cut")
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f' Did you mean "{near[0]}"?' if near else ""
            raise ConfigurationError(f"partition.{name}: no such layer.{hint} Layers: {', '.join(names)}")


def _of_one(stage: Stage, cut: Cut | None) -> Cut:
    """Returns the cut of a stage in a replica of one partition; an axis that it never could have is still an error."""
    if cut is not None and cut.axis != "whole":
        complete(stage, Cut(cut.axis), 1)
    return Cut(whole=0)


def _default(stage: Stage, partitions: int, before: StagePlan | None, shapes: Shapes) -> Cut:
    if stage.follows and before is not None:
        followed = _as_before(stage, partitions, before.cut)
        if followed is not None:
            return followed
    axes = [axis for axis in stage.axes if axis != "groups" and stage.extent(axis) >= partitions]
    if isinstance(stage.layer, Conv2D) and axes == ["rows", "maps"]:
        rows, maps = complete(stage, Cut("rows"), partitions), complete(stage, Cut("maps"), partitions)
        costs = [_gathered(parts_of(stage, cut, partitions, shapes), before) for cut in (rows, maps)]
        return maps if stage.extent("rows") < 2 * partitions or costs[1] < costs[0] else rows
    return complete(stage, Cut((axes or stage.axes)[0]), partitions)  # without an axis that is long enough, raises


def _as_before(stage: Stage, partitions: int, cut: Cut) -> Cut | None:
    """Returns the cut of a stage that follows another's; None if that would leave a partition nothing."""
    if cut.axis == "whole":
        return cut
    assert cut.at is not None
    if cut.axis not in stage.axes or stage.extent(cut.axis) < partitions:
        return None
    extent, window, at = stage.extent(cut.axis), stage.window, cut.at
    if cut.axis == "rows":  # a window belongs to the side on which its middle lies
        at = tuple(min(max(-(-(2 * bound - window.size) // (2 * window.stride)), 0), extent) for bound in cut.at)
    bounds = (0, *at, extent)
    keeps = cut.axis != "rows" or window.stride == 1 == window.size
    return Cut(cut.axis, at) if keeps or all(first < last for first, last in pairwise(bounds)) else None


def _gathered(parts: tuple[StagePart, ...], before: StagePlan | None) -> int:
    """Returns how many elements per example partitions get from others before a stage."""
    if before is None:
        return 0
    return sum(
        region_size(common(part.inputs, made.outputs))
        for p, part in enumerate(parts)
        for q, made in enumerate(before.parts)
        if p != q
    )

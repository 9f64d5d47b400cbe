"""A network cut into stages, and each stage into the parts that the partitions hold (Adam 3.2.5, DistBelief 3).

A stage is one layer, or a convolution with the pooling after it: its inputs are gathered once, then it is computed
without waiting for anybody. A part of a stage is made of slices of its operations (`Operation.slice`): it reads a
region of the outputs of the stage before, computes a region of its own, and holds some rows of each of its tensors.
Parts of a convolution that is cut by rows share all of its tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from adamctl.kernels.backend import Backend
from adamctl.kernels.operation import Array, Operation
from adamctl.kernels.partition.regions import Box, Range, box_of, intersection, whole_box
from adamctl.kernels.slicing import OutputSlice
from adamctl.kernels.step.build import NetworkLayer, build_layers
from adamctl.model.description import Model
from adamctl.model.layout import ALIGNMENT, Tensor, build_layout
from adamctl.model.partition.plan import HeadKind, PartitionPlan, head_kind
from adamctl.model.shapes import infer


class HeldTensor(NamedTuple):
    """The rows of a tensor's axis 0 that a part of a stage computes with."""

    tensor: int
    rows: Range


class OwnedRows(NamedTuple):
    """Rows of a tensor that several partitions hold: `partition` sums their gradients, and it alone pushes them."""

    partition: int
    rows: Range


@dataclass(frozen=True)
class StagePart:
    """One partition's part of a stage.

    Attributes:
        operations: slices of the stage's operations, in order.
        tensors: for each operation, the rows of its tensors that it holds.
        inputs: what it reads of the outputs of the stage before; of an example, for the first stage.
        outputs: what it computes of the stage's outputs.
    """

    operations: tuple[Operation, ...]
    tensors: tuple[tuple[HeldTensor, ...], ...]
    inputs: Box
    outputs: Box


@dataclass(frozen=True)
class Stage:
    """One stage of a cut network.

    Attributes:
        layers: the operations of the whole network that it is made of.
        parts: by partition; None for those that have nothing of it.
        shared: tensor -> who owns which rows, of tensors that more than one partition holds.
    """

    layers: tuple[NetworkLayer, ...]
    parts: tuple[StagePart | None, ...]
    shared: dict[int, tuple[OwnedRows, ...]]

    @property
    def outputs(self) -> Box:
        """All of its outputs."""
        return whole_box(self.layers[-1].operation.output_shape)

    @property
    def has_tensors(self) -> bool:
        return any(layer.tensors for layer in self.layers)

    def is_whole(self, partition: int) -> bool:
        """Whether a partition computes all outputs of the stage."""
        part = self.parts[partition]
        return part is not None and part.outputs == self.outputs


@dataclass(frozen=True)
class CutNetwork:
    """A network cut over partitions.

    Attributes:
        model: its description.
        tensors: those of the whole network, in the order of the parameter layout.
        stages: in order.
        backend: the implementation of its operations.
        class_weights: the factor of each class in the loss of steps, [units]; None: 1.
    """

    model: Model
    tensors: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    backend: Backend
    class_weights: tuple[float, ...] | None = None

    @property
    def partitions(self) -> int:
        return len(self.stages[0].parts)

    def views(self, flat: Array) -> list[Array]:
        """Returns one array for each tensor of the whole network, of a flat vector."""
        return [flat[one.offset : one.offset + one.size].reshape(one.shape) for one in self.tensors]

    @property
    def backward_stop(self) -> int:
        """The first stage with tensors: backward ends there, without an error at its inputs."""
        return next((number for number, stage in enumerate(self.stages) if stage.has_tensors), len(self.stages))

    @property
    def head(self) -> HeadKind:
        """How the parts of the last stage come to loss and error."""
        return head_kind(self.model, sum(part is not None for part in self.stages[-1].parts))

    def sources(self, stage: int, partition: int) -> list[tuple[int, Box]]:
        """Returns from whom a part's inputs come, in the order of partitions: (partition, block)."""
        part = self.stages[stage].parts[partition]
        if part is None or not stage:
            return []
        return _common(
            part.inputs, [None if other is None else other.outputs for other in self.stages[stage - 1].parts]
        )

    def readers(self, stage: int, partition: int) -> list[tuple[int, Box]]:
        """Returns who reads a part's outputs, and so finds a part of the error at them: (partition, block).

        The outputs of the last stage are read where the loss is computed.
        """
        part = self.stages[stage].parts[partition]
        if part is None:
            return []
        if stage + 1 < len(self.stages):
            return _common(
                part.outputs, [None if other is None else other.inputs for other in self.stages[stage + 1].parts]
            )
        if self.head not in ("whole", "gather"):
            return [(partition, part.outputs)]
        others = [number for number, other in enumerate(self.stages[stage].parts) if other is not None]
        return [(number, part.outputs) for number in others]


def _common(box: Box, others: Sequence[Box | None]) -> list[tuple[int, Box]]:
    blocks = [(number, None if other is None else intersection(box, other)) for number, other in enumerate(others)]
    return [(number, block) for number, block in blocks if block is not None]


class StageCut(NamedTuple):
    """How a stage is cut: its layers' positions in the model, and the slice of its outputs that each partition has.

    A slice of all outputs is the whole stage, None is nothing.
    """

    layers: tuple[int, ...]
    parts: tuple[OutputSlice | None, ...]


def cuts_of(plan: PartitionPlan) -> list[StageCut]:
    """Returns the cuts of a plan."""
    cuts: list[StageCut] = []
    for stage in plan.stages:
        parts: list[OutputSlice | None] = []
        for part in stage.parts:
            if part.outputs is None:
                parts.append(None)
                continue
            flat, axis = len(stage.output) == 1, stage.cut.axis
            if axis == "whole":
                axis = "units" if flat else "rows"
            assert axis != "groups", "a plan names the maps of groups"
            parts.append(OutputSlice(axis, *(part.outputs[-1] if axis == "maps" else part.outputs[0])))
        cuts.append(StageCut(stage.layers, tuple(parts)))
    return cuts


def cut_network(model: Model, cuts: Sequence[StageCut], backend: Backend) -> CutNetwork:
    """Returns the stages of a model.

    Args:
        cuts: of each stage, in order; together all layers of the model.

    Raises:
        ValueError: a layer cannot be cut like that, or parts leave something out.
    """
    tensors = build_layout(model, 1).tensors
    layers = build_layers(model, infer(model), tensors, backend)
    stages: list[Stage] = []
    for cut in cuts:
        own = tuple(layer for layer in layers if layer.shape.index in cut.layers)
        parts = tuple(None if part is None else _part(own, part, tensors) for part in cut.parts)
        stage = Stage(own, parts, _shared(parts))
        _check_covered(stage)
        stages.append(stage)
    return CutNetwork(model, tensors, tuple(stages), backend)


def _part(layers: tuple[NetworkLayer, ...], part: OutputSlice, tensors: tuple[Tensor, ...]) -> StagePart:
    """Returns slices of a stage's operations, from the last to the first: each makes what the next one reads."""
    last = layers[-1].operation
    outputs: Box | None = None
    operations: list[Operation] = []
    held: list[tuple[HeldTensor, ...]] = []
    for layer in reversed(layers):
        operation = layer.operation
        if part.stop - part.start == _size(part, operation.output_shape):
            made, inputs = whole_box(operation.output_shape), whole_box(operation.input_shape)
            operations.append(operation)
            rows = tuple(HeldTensor(index, (0, tensors[index].shape[0])) for index in layer.tensors)
        else:
            sliced = operation.slice(part)
            made, inputs = (
                box_of(sliced.outputs, operation.output_shape),
                box_of(sliced.inputs, operation.input_shape),
            )
            operations.append(sliced.operation)
            rows = tuple(
                HeldTensor(index, box_of(region[:1], tensors[index].shape[:1])[0])
                for index, region in zip(layer.tensors, sliced.parameters, strict=True)
            )
            _check_rows(layer, sliced.parameters, tensors)
        held.append(rows)
        outputs = made if outputs is None else outputs
        axis = part.axis
        if len(inputs) == 3:
            start, stop = inputs[0] if axis == "rows" else inputs[2]
            part = OutputSlice(axis, start, stop)
    assert outputs is not None and last is layers[-1].operation
    return StagePart(tuple(reversed(operations)), tuple(reversed(held)), inputs, outputs)


def _size(part: OutputSlice, shape: tuple[int, ...]) -> int:
    return shape[-1] if part.axis == "maps" else shape[0]


def _check_rows(layer: NetworkLayer, regions: Sequence[tuple[slice, ...]], tensors: tuple[Tensor, ...]) -> None:
    """Raises ValueError unless all regions are rows of axis 0: shards are such rows."""
    for index, region in zip(layer.tensors, regions, strict=True):
        shape = tensors[index].shape
        if box_of(region, shape)[1:] != whole_box(shape)[1:]:
            raise ValueError(f"{layer.shape.name}: expected a cut whose parts hold rows of {tensors[index].name}")


def _shared(parts: Sequence[StagePart | None]) -> dict[int, tuple[OwnedRows, ...]]:
    """Returns the owners of tensors that several parts hold: each an equal share of the rows."""
    holders: dict[HeldTensor, list[int]] = {}
    for number, part in enumerate(parts):
        for held in (one for rows in part.tensors for one in rows) if part is not None else ():
            holders.setdefault(held, []).append(number)
    shared: dict[int, tuple[OwnedRows, ...]] = {}
    for (tensor, (start, stop)), partitions in holders.items():
        if len(partitions) > 1:
            count = len(partitions)
            ends = [start + (stop - start) * number // count for number in range(count + 1)]
            ranges = zip(partitions, ends[:-1], ends[1:], strict=True)
            shared[tensor] = tuple(OwnedRows(owner, (first, last)) for owner, first, last in ranges if first < last)
    return shared


def _check_covered(stage: Stage) -> None:
    made = sum(prod(stop - start for start, stop in part.outputs) for part in stage.parts if part is not None)
    if made != prod(stop for _, stop in stage.outputs):
        names = ", ".join(layer.shape.name for layer in stage.layers)
        raise ValueError(
            f"{names}: expected parts that make each output once; found {[p and p.outputs for p in stage.parts]}"
        )


class MemberTensors:
    """The tensors of one partition, in flat float32 vectors that are laid out like the whole network's.

    Only the pages of the ranges that a partition holds are ever touched, so what it does not hold takes no memory.

    Attributes:
        held: rows of tensors, in the order of the layout.
        offsets, shapes: where each begins, in elements, and its shape.
        ranges: the same as ranges of the vector, adjacent ones joined, with the padding between them.
        flat_size: elements of the vector.
    """

    def __init__(self, network: CutNetwork, partition: int) -> None:
        parts = [stage.parts[partition] for stage in network.stages]
        self.held = tuple(held for part in parts if part is not None for rows in part.tensors for held in rows)
        self._tensors = network.tensors
        last = network.tensors[-1]
        self.flat_size = _aligned(last.offset + last.size)
        self.offsets = [
            self._tensors[index].offset + start * self._tensors[index].row_size for index, (start, _) in self.held
        ]
        self.shapes = [(stop - start, *self._tensors[index].shape[1:]) for index, (start, stop) in self.held]
        self.ranges = self.ranges_without(frozenset())

    def ranges_without(self, tensors: Collection[int]) -> list[slice]:
        """Returns the ranges of all but some of the held tensors."""
        ranges: list[slice] = []
        for (index, (_, stop)), offset, shape in zip(self.held, self.offsets, self.shapes, strict=True):
            if index in tensors:
                continue
            end = offset + prod(shape)
            end = _aligned(end) if stop == self._tensors[index].shape[0] else end
            if ranges and ranges[-1].stop == offset:
                ranges[-1] = slice(ranges[-1].start, end)
            else:
                ranges.append(slice(offset, end))
        return ranges

    def views(self, flat: Array) -> list[Array]:
        """Returns one array for each held tensor, of a flat vector."""
        if flat.shape != (self.flat_size,):
            raise ValueError(f"expected a vector of {self.flat_size} elements; found {list(flat.shape)}")
        return [
            flat[offset : offset + prod(shape)].reshape(shape)
            for offset, shape in zip(self.offsets, self.shapes, strict=True)
        ]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

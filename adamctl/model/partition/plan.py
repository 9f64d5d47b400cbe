"""The plan of a replica's partitions: who computes, holds and owns what of each stage, and what goes between them.

Members compute it from the model and the cuts, or get it, and compare its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from adamctl.model.custom.registry import source_hashes
from adamctl.model.description import Model, Softmax
from adamctl.model.layout import ELEMENT_BYTES, Owners
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.geometry import Range, Region, StagePart, common, region_size

HeadKind: TypeAlias = Literal["whole", "gather", "exchange", "separate"]
"""How the partitions that hold units of the last layer come to loss and error.

`whole`: one partition holds all. `gather`: each sends its outputs to all others, and each computes what it needs.
`exchange`: each sends all others (max, sum of exponentials, best index, label's logit) of its units, as float64.
`separate`: each finds the error of its units by itself, and sends as many numbers only so that all count the loss.
"""
EXCHANGED_ELEMENTS = 4 * 8 // ELEMENT_BYTES
HEAD_GATHERED_MAX = 4096
"""Most units of a softmax whose outputs all partitions gather."""


def head_kind(model: Model, holders: int) -> HeadKind:
    """Returns how so many partitions that hold units of a model's last layer come to loss and error."""
    last = model.layers[-1]
    if holders == 1:
        return "whole"
    if model.loss == "logistic":
        return "separate"
    large = isinstance(last, Softmax) and last.units > HEAD_GATHERED_MAX
    return "exchange" if large and model.loss == "cross_entropy" else "gather"


class StagePlan(msgspec.Struct, frozen=True, array_like=True):
    """A stage, cut.

    Attributes:
        index: its position in the network.
        name, kind: name and type of its first layer.
        layers: indices of its layers in the model: one, or a convolution and its pooling.
        tensors: indices of its parameters in the parameter layout.
        input, output: shapes of one example.
        cut: the complete cut.
        parts: one per partition.
    """

    index: int
    name: str
    kind: str
    layers: tuple[int, ...]
    tensors: tuple[int, ...]
    input: tuple[int, ...]
    output: tuple[int, ...]
    cut: Cut
    parts: tuple[StagePart, ...]

    @property
    def holders(self) -> tuple[int, ...]:
        """The partitions that have a part of it, in order."""
        return tuple(number for number, part in enumerate(self.parts) if part.outputs is not None)


class Edge(NamedTuple):
    """What `consumer` reads of the input of a stage and `producer` computed, as the output of the stage before.

    Forward, the producer sends the region; backward, the consumer sends its input error on it, and the producer adds
    what it gets in the order of the partitions.

    Attributes:
        stage: index of the stage that reads.
        region: of that stage's input.
    """

    stage: int
    producer: int
    consumer: int
    region: Region

    @property
    def elements(self) -> int:
        """Elements per example."""
        return region_size(self.region)


class Partial(NamedTuple):
    """The gradient of a tensor that several partitions hold, on the rows that `owner` pushes, from `sender`.

    The owner sends as much back to each sender: the sum of all of them.

    Attributes:
        tensor: index in the parameter layout.
        rows: range of axis 0.
        elements: of that range, per flight.
    """

    stage: int
    tensor: int
    sender: int
    owner: int
    rows: Range
    elements: int


class Traffic(NamedTuple):
    """What one partition sends another.

    Attributes:
        up_bytes: outputs of stages and of the head, forward, per example.
        down_bytes: errors, backward, per example.
        flight_bytes: partial gradients, and back their sums, per flight, whatever its examples.
    """

    sender: int
    receiver: int
    up_bytes: int
    down_bytes: int
    flight_bytes: int


class PartitionPlan(msgspec.Struct, frozen=True, dict=True):
    """How a network is cut over the partitions of a replica.

    Attributes:
        partitions: how many processes make a replica.
        model: the network.
        stages: its stages in order.
        head: how the last stage's partitions come to loss and error.
    """

    partitions: int
    model: Model
    stages: tuple[StagePlan, ...]
    head: HeadKind

    @property
    def hash(self) -> str:
        """Hex digest over the model and everything planned; members with equal digests fit together.

        The sources of layers of the user's own are a part of it.
        """
        sources = source_hashes(self.model)
        material = msgspec.msgpack.encode([self, sources] if sources else self)
        return hashlib.blake2b(material, digest_size=16).hexdigest()

    @property
    def owners(self) -> Owners | None:
        """Which partition pushes which rows of each tensor, for the parameter layout; None for one partition."""
        if self.partitions == 1:
            return None
        ranges = []
        for stage in self.stages:
            for place in range(len(stage.tensors)):
                owned = [(part.owned[place], partition) for partition, part in enumerate(stage.parts)]
                ranges.append(tuple(sorted((*rows, partition) for rows, partition in owned if rows is not None)))
        return Owners(self.partitions, tuple(ranges))

    @property
    def in_short(self) -> str:
        """How the stages with parameters are cut, neighbours of one axis together: `rows conv2d1, units dense1`."""
        found: list[tuple[str, list[str]]] = []
        for stage in self.stages:
            if stage.tensors:
                how = str(stage.cut) if stage.cut.axis == "whole" else stage.cut.axis
                if not found or found[-1][0] != how:
                    found.append((how, []))
                found[-1][1].append(stage.name)
        return ", ".join(f"{how} {'-'.join(dict.fromkeys((names[0], names[-1])))}" for how, names in found)

    def sources(self, stage: int, consumer: int) -> tuple[Edge, ...]:
        """Returns where the input region of a partition's part comes from, its own outputs included, by producer.

        Together the regions are that region, each element once. Nothing for the first stage: data servers send it.
        """
        if stage == 0:
            return ()
        needed = self.stages[stage].parts[consumer].inputs
        found = ((q, common(needed, part.outputs)) for q, part in enumerate(self.stages[stage - 1].parts))
        return tuple(Edge(stage, q, consumer, region) for q, region in found if region is not None)

    def edges(self, stage: int) -> tuple[Edge, ...]:
        """Returns what goes between partitions before a stage, by consumer, then producer."""
        return self._edges[stage]

    @cached_property
    def _edges(self) -> tuple[tuple[Edge, ...], ...]:
        consumers = range(self.partitions)
        return tuple(
            tuple(edge for p in consumers for edge in self.sources(stage, p) if edge.producer != p)
            for stage in range(len(self.stages))
        )

    def backward_edges(self, stage: int) -> tuple[Edge, ...]:
        """Returns the edges on which a stage's input error goes back: none if nothing before it has parameters."""
        return self.edges(stage) if self.needs_input_error(stage) else ()

    def needs_input_error(self, stage: int) -> bool:
        """Whether a stage before this one has parameters."""
        return any(before.tensors for before in self.stages[:stage])

    def partials(self, stage: int) -> tuple[Partial, ...]:
        """Returns what partitions that share a stage's parameters send to the owners of each range, by owner."""
        return self._partials[stage]

    @cached_property
    def _partials(self) -> tuple[tuple[Partial, ...], ...]:
        return tuple(tuple(_partials(stage)) for stage in self.stages)

    def head_elements(self, partition: int) -> int:
        """Returns how many elements per example a partition sends to each other one that holds units of the head."""
        outputs = self.stages[-1].parts[partition].outputs
        if outputs is None:
            return 0
        return {"whole": 0, "gather": region_size(outputs)}.get(self.head, EXCHANGED_ELEMENTS)

    def traffic(self) -> tuple[Traffic, ...]:
        """Returns what goes between each pair of partitions, by sender, then receiver; pairs without any left out."""
        up: dict[tuple[int, int], int] = {}
        down: dict[tuple[int, int], int] = {}
        flight: dict[tuple[int, int], int] = {}
        for pair, where, elements in self._sent():
            sums = {"up": up, "down": down, "flight": flight}[where]
            sums[pair] = sums.get(pair, 0) + elements * ELEMENT_BYTES
        pairs = sorted(up.keys() | down.keys() | flight.keys())
        return tuple(Traffic(*pair, up.get(pair, 0), down.get(pair, 0), flight.get(pair, 0)) for pair in pairs)

    def _sent(self) -> Iterator[tuple[tuple[int, int], Literal["up", "down", "flight"], int]]:
        for stage in range(len(self.stages)):
            for edge in self.edges(stage):
                yield (edge.producer, edge.consumer), "up", edge.elements
            for edge in self.backward_edges(stage):
                yield (edge.consumer, edge.producer), "down", edge.elements
            for partial in self.partials(stage):
                yield (partial.sender, partial.owner), "flight", partial.elements
                yield (partial.owner, partial.sender), "flight", partial.elements
        holders = self.stages[-1].holders
        for sender in holders:
            for receiver in holders:
                if sender != receiver and self.head_elements(sender):
                    yield (sender, receiver), "up", self.head_elements(sender)


def _is_shared(stage: StagePlan) -> bool:
    """Whether two partitions hold the same rows of a tensor: then all that have a part of the stage do."""
    first, *others = [stage.parts[holder] for holder in stage.holders]
    return (
        any(held == region for held, region in zip(others[0].parameters, first.parameters, strict=True))
        if others
        else False
    )


def _partials(stage: StagePlan) -> Iterator[Partial]:
    if not _is_shared(stage):
        return
    for owner, mine in enumerate(stage.parts):
        for place, tensor in enumerate(stage.tensors):
            rows = mine.owned[place]
            for sender, other in enumerate(stage.parts):
                held = other.parameters[place]
                if sender == owner or rows is None or held is None:
                    continue
                both = common((rows, *held[1:]), held)
                if both is not None:
                    yield Partial(stage.index, tensor, sender, owner, rows, region_size(both))

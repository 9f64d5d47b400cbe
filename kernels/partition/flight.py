"""The arrays of one flight's context in one partition: what is its own, and what it shows to others (Adam 3.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.layers.dropout import Dropout
from adamctl.kernels.layers.make import make_loss
from adamctl.kernels.operation import Array, Buffers, Factors, Key, Operation
from adamctl.kernels.partition.memory import BlockName, Kind, SharedMemory
from adamctl.kernels.partition.regions import Box, Held, extents
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors, StagePart
from adamctl.kernels.segments import Post, Wake, Words

PER_EXAMPLE: frozenset[Kind] = frozenset({"output", "error", "statistics"})
"""Blocks of which smaller batches use the beginning."""


class Neighbours(NamedTuple):
    """The partitions of a replica as one of them sees them.

    Attributes:
        own: its number.
        memories: of each partition, its own included: mapped, or copies that are filled from frames.
        wakes: partition -> how to wake those of its threads that wait for this one, or what sends them what they read.
    """

    own: int
    memories: Sequence[SharedMemory]
    wakes: dict[int, Wake]

    def wakes_of(self, partitions: Sequence[int]) -> tuple[Wake, ...]:
        """Returns whom to wake for several partitions: what sends to several of them, once."""
        found = [self.wakes[one] for one in partitions]
        return tuple({wake.descriptor: wake for wake in found}.values())


class BoundOperation(NamedTuple):
    """An operation of a part, and the arrays it works on.

    Attributes:
        gradients: of its tensors; those of tensors that others hold, too, lie in memory that their owners read. None:
            it is not computed.
        needs_input_error: whether backward goes on below it.
    """

    operation: Operation
    weights: list[Array]
    gradients: list[Array | None]
    buffers: Buffers
    needs_input_error: bool


class FlightArrays:
    """One context of a partition.

    Attributes:
        images, labels: stand for those of a flight in native calls, [batch, ...]; or targets in place of labels.
        key: decides what is left to chance in a flight; set when it begins.
        firsts: where it is read which example of its batch is a flight's first; likewise.
        gradient: flat, as `MemberTensors` lays it out; the flight's whole gradient, also of tensors that are shared;
            empty where flights only predict.
        gradients: the same memory, one array for each held tensor, if there is any.
        operations: of each stage, in order; none where the partition has no part.
        inputs, outputs: of each stage; where a stage reads just what the one before computed, they are one array.
        input_errors, output_errors: likewise, on the way back.
        reads_from, read_by: the partitions whose blocks its steps read, and that read its own.
    """

    def __init__(
        self,
        network: CutNetwork,
        neighbours: Neighbours,
        context: int,
        batch: int,
        weights: Sequence[Array],
        skipped: frozenset[int] = frozenset(),
        forward_only: bool = False,
        gradient: Array | None = None,
    ) -> None:
        """Args:
        context: which of the open flights.
        weights: one array for each held tensor.
        skipped: dense weights whose gradient is not computed.
        forward_only: flights only predict: nothing is there for the way back.
        gradient: of the same context, for batches of another size: one flight of a context is open.
        """
        self.skipped, self._forward_only = skipped, forward_only
        self.network, self.neighbours, self.context, self.batch = network, neighbours, context, batch
        tensors = MemberTensors(network, neighbours.own)
        if gradient is None:
            gradient = np.zeros(0 if forward_only else tensors.flat_size, np.float32)
        self.gradient = gradient
        self.gradients = [] if forward_only else tensors.views(self.gradient)
        self.images = np.zeros((batch, *network.model.input), np.float32)
        outputs = network.stages[-1].layers[-1].operation.output_shape[0]
        self.labels = make_loss(network.model.loss, "numpy").answers_of(batch, outputs)
        self.reads_from: set[int] = set()
        self.read_by: set[int] = set()
        self.key: Key = np.zeros(2, np.uint32)
        self.firsts: list[NDArray[np.uint32]] = []
        self.operations: list[list[BoundOperation]] = []
        self.inputs: list[Held | None] = []
        self.outputs: list[Held | None] = []
        self.input_errors: list[Held | None] = []
        self.output_errors: list[Held | None] = []
        gradients: Sequence[Array | None] = self.gradients or [None] * len(weights)
        held = iter(zip(tensors.held, weights, gradients, strict=True))
        for number, stage in enumerate(network.stages):
            part = stage.parts[neighbours.own]
            own = [] if part is None else [next(held) for rows in part.tensors for _ in rows]
            self._add(number, part, [weight for _, weight, _ in own], [gradient for _, _, gradient in own])
        for number in range(len(network.stages)):
            self.output_errors.append(self._output_error(number))

    def shares(self, kind: Kind, number: int) -> bool:
        """Whether this partition shows such a block to others."""
        return self._memory.has(BlockName(kind, number, self.context))

    def shown(self, partition: int, kind: Kind, number: int) -> NDArray[np.generic]:
        """Returns a block that a partition shows."""
        array = self.neighbours.memories[partition].array(BlockName(kind, number, self.context))
        return array[: self.batch] if kind in PER_EXAMPLE else array

    def box(self, partition: int, kind: Kind, number: int) -> Box:
        """Returns the region that a block holds which a partition shows."""
        return self.neighbours.memories[partition].box(BlockName(kind, number, self.context))

    def word(self, partition: int, kind: Kind, number: int) -> Words:
        """Returns the word of a block; noted as read if it is another partition's."""
        if partition != self.neighbours.own:
            self.reads_from.add(partition)
        return self.neighbours.memories[partition].word(BlockName(kind, number, self.context))

    def post(self, kind: Kind, number: int, readers: set[int]) -> list[Post]:
        """Returns how to say that a block of this partition is complete; nothing if no other reads it."""
        others = sorted(readers - {self.neighbours.own})
        if not others:
            return []
        self.read_by.update(others)
        return [Post(self.word(self.neighbours.own, kind, number), self.neighbours.wakes_of(others))]

    def inputs_of(self, stage: int, place: int) -> Array:
        """Returns the inputs of one of a stage's operations."""
        if place:
            return self.operations[stage][place - 1].buffers.output
        inputs = self.inputs[stage]
        assert inputs is not None
        return inputs.array

    def factors(self, tensor: int) -> Factors:
        """Returns the factors of a dense weight: the errors and inputs of its layer's part, when backward is done."""
        for number, stage in enumerate(self.network.stages):
            for place, layer in enumerate(stage.layers):
                if tensor in layer.tensors:
                    inputs = self.inputs_of(number, place)
                    return Factors(self._errors_of(number, place), inputs.reshape(len(inputs), -1))
        raise ValueError(f"expected a tensor of the network; found {tensor}")

    def window(self, flights: int) -> tuple[tuple[Words, ...], list[Post]]:
        """Returns what a flight waits for before it overwrites blocks, and how to say that it needs no others' blocks.

        A flight begins when whoever reads this partition's blocks is done with the flight before in this context. So at
        most `flights` are open, and no early block is lost; call it when all steps are there.
        """
        words = tuple(
            self.neighbours.memories[reader].word(BlockName("free", 0, self.context)) for reader in sorted(self.read_by)
        )
        if not self.reads_from:
            return words, []
        wakes = self.neighbours.wakes_of(sorted(self.reads_from))
        return words, [Post(self._memory.word(BlockName("free", 0, self.context)), wakes, flights)]

    @property
    def _memory(self) -> SharedMemory:
        return self.neighbours.memories[self.neighbours.own]

    def _add(self, number: int, part: StagePart | None, weights: list[Array], gradients: list[Array | None]) -> None:
        """Adds one stage's operations and arrays."""
        self.operations.append([])
        for held in (self.inputs, self.outputs, self.input_errors):
            held.append(None)
        if part is None:
            return
        stop, network = self.network.backward_stop, self.network
        left = list(zip(weights, gradients, [one for rows in part.tensors for one in rows], strict=True))
        for place, operation in enumerate(part.operations):
            needs_error = not self._forward_only and (number > stop or (number == stop and place > 0))
            own = [left.pop(0) for _ in part.tensors[place]]
            found = [
                None
                if tensor in self.skipped or self._forward_only
                else self._partial(tensor)
                if tensor in network.stages[number].shared
                else gradient
                for _, gradient, (tensor, _) in own
            ]
            buffers = operation.allocate(self.batch, needs_error)
            if isinstance(operation, Dropout):
                self.firsts.append(operation.first_of(buffers))
            self.operations[-1].append(
                BoundOperation(operation, [weight for weight, _, _ in own], found, buffers, needs_error)
            )
        first, last = self.operations[-1][0].buffers, self.operations[-1][-1].buffers
        if self.shares("output", number):
            last.output = self._float32("output", number)
        if self.shares("error", number):
            first.input_error = self._float32("error", number)
        self.outputs[-1] = Held(last.output, part.outputs)
        if number > stop and not self._forward_only:
            self.input_errors[-1] = Held(first.input_error, part.inputs)
        self.inputs[-1] = self._input(number, part)

    def _errors_of(self, stage: int, place: int) -> Array:
        """Returns the errors that one of a stage's operations goes back from."""
        if place + 1 < len(self.operations[stage]):
            return self.operations[stage][place + 1].buffers.input_error
        error = self.output_errors[stage]
        assert error is not None
        return error.array

    def _input(self, number: int, part: StagePart) -> Held:
        before = self.outputs[number - 1] if number else Held(self.images, self._whole_images)
        if before is not None and before.box == part.inputs:
            return before
        return Held(np.zeros((self.batch, *extents(part.inputs)), np.float32), part.inputs)

    def _output_error(self, number: int) -> Held | None:
        """Returns the error at a stage's outputs: the next stage's input error if that is all of it."""
        own = self.outputs[number]
        if own is None or self._forward_only or number < self.network.backward_stop:
            return None
        readers = self.network.readers(number, self.neighbours.own)
        if number + 1 < len(self.network.stages) and [one for one, _ in readers] == [self.neighbours.own]:
            after = self.input_errors[number + 1]
            if after is not None and after.box == own.box:
                return after
        return Held(np.zeros_like(own.array), own.box)

    @property
    def _whole_images(self) -> tuple[tuple[int, int], ...]:
        return tuple((0, size) for size in self.network.model.input)

    def _partial(self, tensor: int) -> Array:
        return self._float32("partial", tensor)

    def _float32(self, kind: Kind, number: int) -> Array:
        array = self.shown(self.neighbours.own, kind, number)
        assert array.dtype == np.float32
        return array  # type: ignore[return-value]

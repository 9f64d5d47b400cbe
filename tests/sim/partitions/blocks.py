"""Which blocks go between the partitions of a replica, by the plan; and of which flight each place holds what.

The plan's geometry (`adamctl.model.partition`) is computed apart from the kernels': a link carries exactly what the
plan says. Between members that share no memory, blocks are made and received by the code that workers use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ProtocolError
from adamctl.kernels.partition.flight import PER_EXAMPLE
from adamctl.kernels.partition.memory import BlockName, Kind, SharedLayout, SharedMemory
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.model.partition.geometry import Region
from adamctl.model.partition.plan import PartitionPlan
from adamctl.roles.worker.partition.copies import MemoryCopy
from adamctl.roles.worker.partition.sending import Parcel
from adamctl.wire.messages import PartDataRequest
from tests.sim.engine import ViolationError

FORWARD: frozenset[Kind] = frozenset({"output", "statistics"})
"""What goes between partitions in an evaluation."""

Source: TypeAlias = tuple[int, Kind, int]
"""Who shows a block, and its kind and number."""


class Planned(NamedTuple):
    """Who reads a block, and what of it: places in the array without its batch, None for all of it."""

    readers: dict[int, tuple[slice, ...] | None]


def planned_blocks(plan: PartitionPlan, clips: bool) -> dict[Source, Planned]:
    """Returns what goes between partitions in a training flight."""
    found: dict[Source, Planned] = {}

    def add(source: Source, reader: int, region: Region | None = None, origin: Region | None = None) -> None:
        place = None
        if region is not None and origin is not None:
            pairs = zip(region, origin, strict=True)
            place = tuple(slice(start - first, stop - first) for (start, stop), (first, _) in pairs)
        found.setdefault(source, Planned({})).readers[reader] = place

    for number, stage in enumerate(plan.stages):
        for edge in plan.edges(number):
            add(
                (edge.producer, "output", number - 1), edge.consumer, edge.region, _outputs(plan, edge.producer, number)
            )
        for edge in plan.backward_edges(number):
            add((edge.consumer, "error", number), edge.producer, edge.region, stage.parts[edge.consumer].inputs)
        for part in plan.partials(number):
            whole = tuple((0, size) for size in _shape_of(plan, number, part.tensor, part.sender))
            add((part.sender, "partial", part.tensor), part.owner, (part.rows, *whole[1:]), whole)
            for other in stage.holders:
                if other != part.owner:
                    add((part.owner, "sum", part.tensor), other)
    holders, last = plan.stages[-1].holders, len(plan.stages) - 1
    for sender in holders:
        for reader in holders:
            if sender != reader and plan.head in ("exchange", "separate"):
                add((sender, "statistics", 0), reader)
            elif sender != reader:
                add((sender, "output", last), reader)
    for sender in range(plan.partitions) if clips else ():
        for reader in range(plan.partitions):
            if sender != reader:
                add((sender, "norms", 0), reader)
    return found


def _outputs(plan: PartitionPlan, partition: int, stage: int) -> Region | None:
    return plan.stages[stage - 1].parts[partition].outputs


def _shape_of(plan: PartitionPlan, stage: int, tensor: int, partition: int) -> tuple[int, ...]:
    found = plan.stages[stage]
    held = found.parts[partition].parameters[found.tensors.index(tensor)]
    assert held is not None and all(not start for start, _ in held), "shared tensors are held as a whole"
    return tuple(stop for _, stop in held)


class Blocks:
    """The memory of all members of one group, and the copies that readers have of it where they do not share it.

    Attributes:
        planned: what goes between them.
    """

    def __init__(
        self, network: CutNetwork, planned: Mapping[Source, Planned], batch: int, flights: int,
        copied: frozenset[tuple[int, int]],
    ) -> None:  # fmt: skip
        """`copied`: pairs (producer, reader) that share no memory."""
        self.planned, self.flights, self._copied = planned, flights, copied
        layouts = [SharedLayout(network, number, batch, flights) for number in range(network.partitions)]
        self._memories = [_memory(layout, flights) for layout in layouts]
        self._copies: dict[tuple[int, int], MemoryCopy] = {}
        self._parcels: dict[tuple[int, int, BlockName], Parcel] = {}
        for producer, reader in sorted(copied):
            layout = SharedLayout(network, producer, batch, flights, reader)
            copy = MemoryCopy(layout, flights, batch, f"partition {producer}", lambda: None)
            _make_undefined(copy.memory, layout)
            self._copies[producer, reader] = copy
            for number, name in enumerate(layout.places):
                parcel = Parcel(number, name, self._memories[producer], layout, network.backend)
                self._parcels[producer, reader, name] = parcel
        self._sent: dict[tuple[Source, int, int], list[tuple[PartDataRequest, int]]] = {}
        self._holds: dict[tuple[int, Source, int], int] = {}  # holder, block, context -> flight
        self._read: dict[tuple[int, Source, int], int] = {}  # reader, block, context -> flight
        self._readers: dict[tuple[Source, int], frozenset[int]] = {}  # of what the block holds now
        self._arrays: dict[tuple[int, Source, int], NDArray[np.generic]] = {}
        self._came: dict[tuple[int, Source, int], int] = {}
        self._number = 0

    def copies(self, producer: int, reader: int) -> bool:
        return (producer, reader) in self._copied

    def seen_by(self, partition: int) -> list[SharedMemory]:
        """Returns the memory of each member as one of them sees it."""
        own = enumerate(self._memories)
        return [self._copies[one, partition].memory if self.copies(one, partition) else memory for one, memory in own]

    def words_of(self, partition: int) -> dict[int, tuple[Source, int]]:
        """Returns the address of each word that a member sees -> its block and context."""
        found: dict[int, tuple[Source, int]] = {}
        for producer, memory in enumerate(self.seen_by(partition)):
            for name in memory._layout.places:
                found[address(memory.word(name))] = (producer, name.kind, name.number), name.flight
        return found

    # --- what happens -------------------------------------------------------------------------------------------------

    def writes(self, source: Source, context: int, flight: int, readers: frozenset[int], trains: bool) -> None:
        """A member has written a block for a flight, and shows it to others."""
        planned = self.planned.get(source)
        told = f"{source} of flight {flight}"
        if planned is None or (not trains and source[1] not in FORWARD):
            raise ViolationError(f"a block that nobody needs: {told}")
        if readers != planned.readers.keys():
            raise ViolationError(f"a block for others than those who need it: {told} for {sorted(readers)}")
        before = self._holds.get((source[0], source, context), 0)
        if before >= flight:
            raise ViolationError(f"a block is sent twice: {told}, after that of flight {before}")
        for reader in self._readers.get((source, context), frozenset()):
            copied = self.copies(source[0], reader)
            is_done = self._holds if copied else self._read
            if is_done.get((reader, source, context), 0) < before:
                raise ViolationError(f"a block is rewritten while it may be read: {told}, by {reader}")
        self._note(source[0], source, context, flight)
        self._readers[source, context] = readers

    def leaves(self, source: Source, context: int, flight: int, value: int, reader: int, examples: int) -> None:
        """What a reader needs of a block is sent, and comes to its place; `value`: what its word will be."""
        name = BlockName(source[1], source[2], context)
        parcel, copy = self._parcels[source[0], reader, name], self._copies[source[0], reader]
        content = parcel.content(examples)
        message = PartDataRequest(1, parcel.number, value, examples if source[1] in PER_EXAMPLE else 0)
        self._sent.setdefault((source, context, reader), []).append((message, len(content)))
        if source[1] != "free":
            self._check_sent(source, context, flight, reader, examples, content)
            try:
                copy.place(message, len(content))[:] = content
            except ProtocolError as error:
                raise ViolationError(f"a copy refuses what is sent: {error}") from error

    def _check_sent(
        self, source: Source, context: int, flight: int, reader: int, examples: int, content: memoryview
    ) -> None:
        if self._holds[source[0], source, context] != flight:
            raise ViolationError(f"a block is rewritten while it is sent: {source} of flight {flight} to {reader}")
        there = self._holds.get((reader, source, context), 0)
        if self._read.get((reader, source, context), 0) < there:
            raise ViolationError(f"a copy is rewritten while it may be read: {source} of flight {flight} at {reader}")
        place, array = self.planned[source].readers[reader], self._array(source[0], source, context)
        if source[1] in PER_EXAMPLE:
            chosen: tuple[slice, ...] = (slice(examples), *(place or ()))
        else:
            chosen = place or (slice(None),)
        if array[chosen].tobytes() != content:
            raise ViolationError(f"something else is sent than the plan says: {source} of flight {flight} to {reader}")

    def arrived(self, source: Source, context: int, flight: int, reader: int) -> None:
        """All of a block that a reader needs is there."""
        if source[1] != "free":
            self._note(reader, source, context, flight)
        self._copies[source[0], reader].arrived(*self._sent[source, context, reader].pop(0))

    def _note(self, holder: int, source: Source, context: int, flight: int) -> None:
        self._number += 1
        self._holds[holder, source, context], self._came[holder, source, context] = flight, self._number

    def came(self, reader: int, source: Source, context: int) -> int:
        """Returns a number that says when what a reader sees of a block came, before others with greater ones."""
        holder = reader if self.copies(source[0], reader) else source[0]
        return self._came[holder, source, context]

    def reads(self, source: Source, context: int, flight: int, reader: int) -> None:
        """A member's step has read a block. Nobody reads it again: a copy of it is NaN from now on."""
        holder = reader if self.copies(source[0], reader) else source[0]
        found = self._holds.get((holder, source, context), 0)
        if found != flight:
            raise ViolationError(
                f"a stage ran without its inputs: {source} at {reader} is of flight {found}, not {flight}"
            )
        self._read[reader, source, context] = flight
        if holder == reader:
            self._array(reader, source, context)[...] = np.nan

    def check_read(self, context: int, flight: int, reader: int, trains: bool, clips: bool = True) -> None:
        """A member has finished a flight: it has read all that it needs. `clips`: norms, too."""
        for source, planned in self.planned.items():
            needed = reader in planned.readers and (trains or source[1] in FORWARD)
            needed = needed and (clips or source[1] != "norms")
            if needed and self._read.get((reader, source, context), 0) != flight:
                raise ViolationError(
                    f"a flight is finished without what it needs: {source}, flight {flight} at {reader}"
                )

    def _array(self, holder: int, source: Source, context: int) -> NDArray[np.generic]:
        key = holder, source, context
        if key not in self._arrays:
            memory = self._memories[source[0]] if holder == source[0] else self._copies[source[0], holder].memory
            self._arrays[key] = memory.array(BlockName(source[1], source[2], context))
        return self._arrays[key]


def address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])


def _memory(layout: SharedLayout, flights: int) -> SharedMemory:
    """Returns memory of a new group in which everything that was not written is NaN."""
    memory = SharedMemory(layout, np.zeros(layout.size_bytes, np.uint8))
    memory.begin(flights)
    _make_undefined(memory, layout)
    return memory


def _make_undefined(memory: SharedMemory, layout: SharedLayout) -> None:
    for name in layout.places:
        memory.array(name)[...] = np.nan

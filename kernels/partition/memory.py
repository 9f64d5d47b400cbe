"""What a partition shows the others: the layout of its memory, which all of them derive from the same plan.

For each flight there are the outputs and input errors that other partitions read, the gradients of tensors that several
partitions hold, and a word for each of these that holds the number of the last flight whose values are complete. A
reader on the same host maps this memory; for one elsewhere, a copy of it is filled from frames.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.partition.regions import extents
from adamctl.kernels.partition.stages import CutNetwork

Kind: TypeAlias = Literal["output", "error", "partial", "sum", "norms", "statistics", "free"]
"""`partial`: a gradient that this partition found of a tensor that others hold, too; `sum`: the sum of all of them, of
the rows that this partition owns; `norms`: squared norm of each stage's gradient; `statistics`: of the logits of a head
that is too large to gather; `free`: a word alone: the last flight for which its readers may overwrite what they show,
because this partition has read everything of the flight before in that context."""

WORD_BYTES = 64
"""A word has a cache line of its own, so that who waits for one does not slow down who writes another."""
BLOCK_ALIGNMENT_BYTES = 64
SLEEPERS = 0
"""Offset of the number of threads that sleep."""


class BlockName(NamedTuple):
    """`number`: the stage; for partial gradients and sums the tensor; 0 where there is one per flight."""

    kind: Kind
    number: int
    flight: int


class Place(NamedTuple):
    """Where an array lies: its first byte, and the byte of its word."""

    offset_bytes: int
    shape: tuple[int, ...]
    dtype: Any
    word_bytes: int


class SharedLayout:
    """The memory of one partition.

    Attributes:
        places: where each block lies.
        size_bytes: of all of it.
    """

    def __init__(self, network: CutNetwork, partition: int, batch: int, flights: int) -> None:
        self.places: dict[BlockName, Place] = {}
        self._words_bytes = WORD_BYTES  # the first line has the sleepers
        blocks: list[tuple[BlockName, tuple[int, ...], Any]] = []
        for flight in range(flights):
            blocks += [
                (BlockName(kind, number, flight), shape, dtype)
                for kind, number, shape, dtype in _shown(network, partition, batch)
            ]
        offset = WORD_BYTES * (1 + len(blocks))
        for line, (name, shape, dtype) in enumerate(blocks):
            self.places[name] = Place(offset, shape, dtype, WORD_BYTES * (1 + line))
            size_bytes = prod(shape) * np.dtype(dtype).itemsize
            offset += -(-size_bytes // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
        self.size_bytes = offset


class SharedMemory:
    """The arrays and words of a partition, in memory of the size that its layout has, zeroed at first."""

    def __init__(self, layout: SharedLayout, memory: NDArray[np.uint8]) -> None:
        self._layout, self._memory = layout, memory

    def begin(self, flights: int) -> None:
        """Sets the words of a new group: the first flight of each context may write at once."""
        for name in self._layout.places:
            self.word(name)[0] = flights if name.kind == "free" else 0
        self.sleepers[0] = 0

    def array(self, name: BlockName) -> NDArray[Any]:
        """Returns a block."""
        place = self._layout.places[name]
        size_bytes = prod(place.shape) * np.dtype(place.dtype).itemsize
        part = self._memory[place.offset_bytes : place.offset_bytes + size_bytes]
        array: NDArray[Any] = part.view(place.dtype).reshape(place.shape)
        return array

    def word(self, name: BlockName) -> NDArray[np.int64]:
        """Returns the word of a block, [1]."""
        start = self._layout.places[name].word_bytes
        return self._memory[start : start + 8].view(np.int64)

    @property
    def sleepers(self) -> NDArray[np.int64]:
        """How many of this partition's threads sleep, [1]."""
        return self._memory[SLEEPERS : SLEEPERS + 8].view(np.int64)

    def contains(self, address: int) -> bool:
        """Whether an address lies in this memory."""
        return 0 <= address - int(self._memory.__array_interface__["data"][0]) < self._memory.nbytes

    def has(self, name: BlockName) -> bool:
        return name in self._layout.places


def _shown(network: CutNetwork, partition: int, batch: int) -> list[tuple[Kind, int, tuple[int, ...], Any]]:
    """Returns kind, number, shape and type of what others read."""
    shown: list[tuple[Kind, int, tuple[int, ...], Any]] = []
    last = len(network.stages) - 1
    for number, stage in enumerate(network.stages):
        part = stage.parts[partition]
        if part is None:
            continue
        if any(reader != partition for reader, _ in network.readers(number, partition)):
            shown.append(("output", number, (batch, *extents(part.outputs)), np.float32))
        finds_error = number > network.backward_stop
        if finds_error and any(source != partition for source, _ in network.sources(number, partition)):
            shown.append(("error", number, (batch, *extents(part.inputs)), np.float32))
        for tensor, owners in stage.shared.items():
            shape = network.tensors[tensor].shape
            shown.append(("partial", tensor, shape, np.float32))
            for owner, (start, stop) in owners:
                if owner == partition:
                    shown.append(("sum", tensor, (stop - start, *shape[1:]), np.float32))
        if number == last and not stage.is_whole(partition):
            shown.append(("statistics", 0, (batch, STATISTICS), np.float64))
    if network.partitions > 1:
        shown.append(("norms", 0, (len(network.stages),), np.float64))
        shown.append(("free", 0, (0,), np.float32))
    return shown


STATISTICS = 4
"""Of an example's logits: the largest, the sum of exponentials below it, where it is, and that of the label."""

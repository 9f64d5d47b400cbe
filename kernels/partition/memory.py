"""What a partition shows the others: the layout of its memory, which all of them derive from the same plan.

For each flight there are the outputs and input errors that other partitions read, the gradients of tensors that several
partitions hold, and a word for each of these that holds the number of the last flight whose values are complete. A
reader on the same host maps this memory. One that cannot has a copy of what it reads, and of that alone, which is
filled from frames: so each block of a copy is whole in a frame, and is received where it stays.

Partitions that only predict show each other outputs alone, and those of the last stage to nobody: who asked gets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.native import address_of
from adamctl.kernels.partition.regions import Box, extents, whole_box
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
    """Where an array lies: its first byte, and the byte of its word.

    `box`: the region that it holds of a stage's outputs or inputs, or of a tensor; the batch not counted.
    """

    offset_bytes: int
    shape: tuple[int, ...]
    dtype: Any
    word_bytes: int
    box: Box

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * int(np.dtype(self.dtype).itemsize)


class SharedLayout:
    """The memory of one partition, or the copy of it that a reader has.

    Attributes:
        places: where each block lies.
        size_bytes: of all of it.
    """

    def __init__(
        self, network: CutNetwork, partition: int, batch: int, flights: int, reader: int | None = None,
        forward_only: bool = False,
    ) -> None:  # fmt: skip
        """`reader`: whose copy; None: what all readers read. `forward_only`: flights only predict."""
        self.places: dict[BlockName, Place] = {}
        blocks = _shown(network, partition, batch, forward_only)
        if reader is not None:
            blocks = [block.read_by(reader) for block in blocks if reader in block.readers]
        names = [(flight, block) for flight in range(flights) for block in blocks]
        offset = WORD_BYTES * (1 + len(names))  # the first line has the sleepers
        for line, (flight, block) in enumerate(names):
            place = Place(offset, block.shape, block.dtype, WORD_BYTES * (1 + line), block.box)
            self.places[BlockName(block.kind, block.number, flight)] = place
            offset += -(-place.size_bytes // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
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
        part = self._memory[place.offset_bytes : place.offset_bytes + place.size_bytes]
        array: NDArray[Any] = part.view(place.dtype).reshape(place.shape)
        return array

    def word(self, name: BlockName) -> NDArray[np.int64]:
        """Returns the word of a block, [1]."""
        start = self._layout.places[name].word_bytes
        return self._memory[start : start + 8].view(np.int64)

    @property
    def words(self) -> NDArray[np.int64]:
        """All words, in the order of the layout's places."""
        lines = self._memory[WORD_BYTES : WORD_BYTES * (1 + len(self._layout.places))]
        return lines.view(np.int64).reshape(-1, WORD_BYTES // 8)[:, 0]

    def box(self, name: BlockName) -> Box:
        """Returns the region that a block holds."""
        return self._layout.places[name].box

    @property
    def sleepers(self) -> NDArray[np.int64]:
        """How many of this partition's threads sleep, [1]."""
        return self._memory[SLEEPERS : SLEEPERS + 8].view(np.int64)

    def contains(self, address: int) -> bool:
        """Whether an address lies in this memory."""
        return 0 <= address - address_of(self._memory) < self._memory.nbytes

    def has(self, name: BlockName) -> bool:
        return name in self._layout.places


class _Block(NamedTuple):
    """A block of each flight. `readers`: who reads it, and what of it."""

    kind: Kind
    number: int
    shape: tuple[int, ...]
    dtype: Any
    box: Box
    readers: dict[int, Box]

    def read_by(self, reader: int) -> _Block:
        """Returns what one of its readers reads."""
        box = self.readers[reader]
        return self._replace(shape=(*self.shape[: len(self.shape) - len(box)], *extents(box)), box=box)


def _shown(network: CutNetwork, partition: int, batch: int, forward_only: bool) -> list[_Block]:
    """Returns what others read."""
    shown: list[_Block] = []
    last, f32, f64 = len(network.stages) - 1, np.float32, np.float64
    everyone = range(network.partitions)

    def add(
        kind: Kind, number: int, shape: tuple[int, ...], dtype: Any, box: Box, readers: Sequence[tuple[int, Box]]
    ) -> None:
        others = {reader: read for reader, read in readers if reader != partition}
        if others or kind == "partial":  # whose owner may be this partition alone, which sums it up there
            shown.append(_Block(kind, number, shape, dtype, box, others))

    for number, stage in enumerate(network.stages):
        part = stage.parts[partition]
        if part is None:
            continue
        holders = [one for one, other in enumerate(stage.parts) if other is not None]
        made, read = part.outputs, part.inputs
        if not forward_only or number < last:
            add("output", number, (batch, *extents(made)), f32, made, network.readers(number, partition))
        if forward_only:
            continue
        if number > network.backward_stop:
            add("error", number, (batch, *extents(read)), f32, read, network.sources(number, partition))
        for tensor, owners in stage.shared.items():
            shape = network.tensors[tensor].shape
            whole, inner = whole_box(shape), whole_box(shape[1:])
            add("partial", tensor, shape, f32, whole, [(one.partition, (one.rows, *inner)) for one in owners])
            for owner, rows in owners:
                if owner == partition:
                    box = (rows, *inner)
                    add("sum", tensor, extents(box), f32, box, [(one, box) for one in holders])
        if number == last and not stage.is_whole(partition):
            numbers = whole_box((STATISTICS,))
            add("statistics", 0, (batch, STATISTICS), f64, numbers, [(one, numbers) for one in holders])
    norms, nothing = whole_box((len(network.stages),)), whole_box((0,))
    if not forward_only:
        add("norms", 0, extents(norms), f64, norms, [(one, norms) for one in everyone])
        add("free", 0, (0,), f32, nothing, [(one, nothing) for one in everyone])
    return shown


STATISTICS = 4
"""Of an example's logits: the largest, the sum of exponentials below it, where it is, and that of the label.

Of yes-or-no outputs the second is their loss, and there is no fourth.
"""

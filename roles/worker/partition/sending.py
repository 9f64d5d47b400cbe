"""Sends what a member shows to those members that cannot map its memory, block by block as they become complete.

For the compute threads this is one more reader: a post writes the block's word and wakes it, as it would wake another
process. The event loop then looks which words have changed, and sends each such block once to each neighbour that reads
any of it. Blocks are sent from where they were computed: nobody overwrites one before all of its readers have said that
they are done with it, which they are only after they have received it (decision 0028). What a neighbour reads of a
block is copied together first where it does not lie so; that memory is used again under the same rule.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import Backend
from adamctl.kernels.native import NativeCall
from adamctl.kernels.partition.flight import PER_EXAMPLE
from adamctl.kernels.partition.memory import BlockName, SharedLayout, SharedMemory
from adamctl.kernels.partition.regions import BlockMove, Held
from adamctl.kernels.segments import Wake
from adamctl.net.transport import Connection
from adamctl.roles.worker.partition.copies import PIECE_BYTES
from adamctl.wire.codec import encode_message
from adamctl.wire.constants import FRAME_HEADER_BYTES
from adamctl.wire.messages import PartDataRequest

SEND_S = 600.0
"""How long a block may wait for its turn. A member that hangs is found by its lead, before that."""
READ_BYTES = 4096


class Sent(NamedTuple):
    """What was sent to others: bytes of blocks, of the frames around them, and frames."""

    block_bytes: int = 0
    framing_bytes: int = 0
    frames: int = 0


class Parcel:
    """A block of this member's for one neighbour. `number`: the block's place in the neighbour's copy."""

    def __init__(
        self, number: int, name: BlockName, memory: SharedMemory, copy: SharedLayout, backend: Backend
    ) -> None:
        self.number, self.name = number, name
        place, array = copy.places[name], memory.array(name)
        self._pack: Callable[[], None] | None = None
        box, whole = place.box, memory.box(name)
        if box == whole or not place.size_bytes:
            self._array = array
        elif name.kind in PER_EXAMPLE:
            self._array = np.zeros(place.shape, place.dtype)
            self._pack = _packing(BlockMove(Held(self._array, box), Held(array, whole), box), backend)
        else:  # rows of a tensor
            (start, stop), (first, _) = box[0], whole[0]
            self._array = array[start - first : stop - first]

    @property
    def packs(self) -> bool:
        """Whether what the neighbour reads has to be copied together."""
        return self._pack is not None

    def content(self, examples: int) -> memoryview:
        """Returns what the neighbour reads of the block now, of so many examples of it."""
        if self._pack is not None:
            self._pack()
        array = self._array[:examples] if self.name.kind in PER_EXAMPLE else self._array
        return array.reshape(-1).view(np.uint8).data


def _packing(move: BlockMove, backend: Backend) -> Callable[[], None]:
    """Returns what makes a move, without the interpreter lock if possible."""
    calls = move.native(backend)
    if calls is None:
        return move.make
    (call,) = calls
    assert isinstance(call, NativeCall)
    return call.make


class _Ready(NamedTuple):
    parcel: Parcel
    flight: int
    examples: int


class Outbox:
    """What goes to one neighbour, in the order in which blocks become complete. Runs on the event loop.

    Bounded: a block is in it once at most, because its next flight waits until the neighbour has it; a word without
    content twice.
    """

    def __init__(self, group_epoch: int, connection: Connection, parcels: dict[int, Parcel]) -> None:
        """`parcels`: by the block's place in this member's memory."""
        self.parcels = parcels
        self.sent = Sent()
        self._epoch, self._connection = group_epoch, connection
        self._ready: deque[_Ready] = deque()
        self._some = asyncio.Event()

    def add(self, block: int, flight: int, examples: int) -> None:
        parcel = self.parcels.get(block)
        if parcel is not None:
            self._ready.append(_Ready(parcel, flight, examples))
            self._some.set()

    async def run(self) -> None:
        """Sends for ever.

        Raises:
            UnreachableError, DeadlineError, ProtocolError: the connection is lost, or the neighbour takes nothing.
        """
        while True:
            await self._some.wait()
            self._some.clear()
            while self._ready:
                await self._send(self._ready.popleft())

    async def _send(self, ready: _Ready) -> None:
        parcel, flight, examples = ready
        content = parcel.content(examples)
        told = examples if parcel.name.kind in PER_EXAMPLE else 0
        for offset in range(0, max(len(content), 1), PIECE_BYTES):
            piece = content[offset : offset + PIECE_BYTES]
            message = PartDataRequest(self._epoch, parcel.number, flight, told, offset)
            await self._connection.send_one_way(message, [piece], deadline_s=SEND_S)
            block_bytes, framing_bytes, frames = self.sent
            framing_bytes += FRAME_HEADER_BYTES + len(encode_message(message))
            self.sent = Sent(block_bytes + len(piece), framing_bytes, frames + 1)


class Sender:
    """Looks for blocks that are complete, and gives them to the outboxes. Everything runs on the event loop.

    Attributes:
        wake: how compute threads wake it.
    """

    def __init__(self, memory: SharedMemory, flights: int, outboxes: list[Outbox]) -> None:
        self._outboxes, self._flights = outboxes, flights
        self._words: NDArray[np.int64] = memory.words
        self._seen = self._words.copy()
        self._examples: dict[int, int] = {}  # flight -> how many
        self._fence = Lock()
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        asleep = np.ones(1, np.int64)  # always: the loop looks only when it is woken
        self.wake = Wake(asleep, self._write)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._woken)

    def submitted(self, flight: int, examples: int) -> None:
        """Notes how many examples a flight has, before it begins."""
        self._examples[flight] = examples

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._read, READ_BYTES)
        self.look()

    def look(self) -> None:
        """Takes all blocks that have become complete since the last look."""
        with self._fence:
            changed = np.flatnonzero(self._words > self._seen)
            flights = self._words[changed]
        with self._fence:  # what is read from now on is at least as new as the words
            self._seen[changed] = flights
        for block, flight in zip(changed.tolist(), flights.tolist(), strict=True):
            for outbox in self._outboxes:
                outbox.add(block, flight, self._examples.get(flight, 0))
            self._examples.pop(flight - 2 * self._flights, None)  # all of it was sent before this one began

    def close(self) -> None:
        """No thread may wake it any more."""
        self._loop.remove_reader(self._read)
        os.close(self._read)
        os.close(self._write)

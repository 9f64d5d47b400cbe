"""The copy that a member has of another one's memory, where it cannot map that memory: filled from PART_DATA frames.

A block is received where its readers look for it. Its word is written when all of it is there, and wakes the threads of
this process. Until then nobody looks at the block: the flight before in its context is finished here, or the sender
would not have begun this one (decision 0028).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ProtocolError
from adamctl.kernels.native import address_of
from adamctl.kernels.partition.flight import PER_EXAMPLE
from adamctl.kernels.partition.memory import WORD_BYTES, SharedLayout, SharedMemory
from adamctl.wire.messages import PartDataRequest

PIECE_BYTES = 4 << 20
"""Longest body of a frame: what a connection hands to the kernel in one call."""


@dataclass
class _Taken:
    """The last frames of a block. `size_bytes`: of the pieces that have a place so far; 0: the block is complete."""

    flight: int
    examples: int = 0
    size_bytes: int = 0


class MemoryCopy:
    """What one member shows, as far as this one reads it. Everything runs on the event loop.

    Attributes:
        memory: for the neighbours of this member.
        received_bytes: of bodies.
    """

    def __init__(self, layout: SharedLayout, flights: int, batch: int, sender: str, awaken: Callable[[], None]) -> None:
        """Args:
        sender: what to call the other member in messages.
        awaken: wakes a thread of this process, if one sleeps.
        """
        array = _memory(layout.size_bytes)
        self.memory = SharedMemory(layout, array)
        self.memory.begin(flights)
        self.received_bytes = 0
        self._flights, self._batch, self._sender, self._awaken = flights, batch, sender, awaken
        self._names = list(layout.places)
        self._bytes = [
            array[place.offset_bytes : place.offset_bytes + place.size_bytes] for place in layout.places.values()
        ]
        self._words = self.memory.words
        self._taken = [_Taken(int(word)) for word in self._words]
        self._fence = Lock()

    def place(self, message: PartDataRequest, size_bytes: int) -> memoryview:
        """Returns where the body of a frame is to be received. The frames of a connection come here in their order.

        Raises:
            ProtocolError: the frame is not the next piece of a block that this copy has; nothing has changed.
        """
        self._take(message, size_bytes)
        return self._bytes[message.block].data[message.offset : message.offset + size_bytes]

    def arrived(self, message: PartDataRequest, size_bytes: int) -> None:
        """Notes that a frame is there, and shows its block if that is complete. Raises as `place`, if it has no body.

        The next frame may have its place already.
        """
        if not size_bytes:
            self._take(message, 0)
        block = message.block
        self.received_bytes += size_bytes
        if message.offset + size_bytes < self._whole_bytes(block, message.examples):
            return
        with self._fence:  # orders what was received before the word
            self._words[block] = message.flight
        with self._fence:
            self._awaken()

    def _take(self, message: PartDataRequest, size_bytes: int) -> None:
        """Counts a frame to its block."""
        block, flight = message.block, message.flight
        if not 0 <= block < len(self._names):
            raise self._refused(f"expected one of {len(self._names)} blocks; found block {block}")
        name, taken = self._names[block], self._taken[block]
        told, begun = f"{name.kind} {name.number} (block {block})", bool(taken.size_bytes)
        if flight % self._flights != name.flight or (flight != taken.flight if begun else flight <= taken.flight):
            order = f"flight {taken.flight} to go on" if begun else f"a flight after {taken.flight}"
            raise self._refused(f"{told}: expected {order}, of context {name.flight}; found flight {flight}")
        known = name.kind not in PER_EXAMPLE or 0 < message.examples <= self._batch
        if not known or (begun and message.examples != taken.examples):
            expected = taken.examples if begun else f"1 to {self._batch}"
            raise self._refused(f"{told}: expected {expected} examples; found {message.examples}")
        whole_bytes = self._whole_bytes(block, message.examples)
        expected_bytes = min(whole_bytes - taken.size_bytes, PIECE_BYTES)
        if (message.offset, size_bytes) != (taken.size_bytes, expected_bytes):
            raise self._refused(
                f"{told}: expected {expected_bytes} bytes at {taken.size_bytes}; found {size_bytes} at {message.offset}"
            )
        taken.flight, taken.examples = flight, message.examples
        taken.size_bytes = (taken.size_bytes + size_bytes) % whole_bytes if whole_bytes else 0

    def _whole_bytes(self, block: int, examples: int) -> int:
        size_bytes = len(self._bytes[block])
        return size_bytes * examples // self._batch if self._names[block].kind in PER_EXAMPLE else size_bytes

    def _refused(self, what: str) -> ProtocolError:
        return ProtocolError(f"PART_DATA from {self._sender}: {what}")


def _memory(size_bytes: int) -> NDArray[np.uint8]:
    """Returns zeroed memory in which the layout's alignment holds."""
    whole = np.zeros(size_bytes + WORD_BYTES, np.uint8)
    start = -address_of(whole) % WORD_BYTES
    return whole[start : start + size_bytes]

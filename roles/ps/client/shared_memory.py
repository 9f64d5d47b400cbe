"""Memory that a client shares with servers on its machine, and requests that name it instead of carrying values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.operation import Array
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.net.shared_memory import Place, Region, SharedMemory, array_bytes
from adamctl.net.transport import Connection
from adamctl.roles.ps.client.envelope import Envelope
from adamctl.wire.messages import PullRequest, PushRequest, PushSource


class DirectPush(NamedTuple):
    """A push whose sources are all in one region."""

    region: Region
    message: PushRequest


class SharedArrays:
    """Finds arrays in all memory that a client may share."""

    def __init__(self) -> None:
        self._memories: list[SharedMemory] = []

    def add(self, memory: SharedMemory) -> None:
        self._memories.append(memory)

    def new_array(self, size: int) -> Array:
        """Returns a zeroed float32 vector in memory of its own. Raises MemoryError."""
        memory = SharedMemory(array_bytes(size))
        self.add(memory)
        return memory.array(size)

    def find(self, array: NDArray[Any]) -> Place | None:
        """Returns where a float32 array is in shared memory, or None if a request cannot name it."""
        if array.dtype == np.float32:
            for memory in self._memories:
                place = memory.find(array)
                if place is not None:
                    return place
        return None

    def renew(self, *arrays: NDArray[Any]) -> None:
        """Detaches arrays' pages from abandoned requests; see `SharedMemory.renew`."""
        for memory in self._memories:  # memory without any of the arrays stays unchanged
            memory.renew(*arrays)

    def direct_push(self, message: PushRequest, envelope: Envelope) -> DirectPush | None:
        """Returns an envelope's request that names its sources' memory, or None if they are not all in one region."""
        if not self._memories:
            return None
        region: Region | None = None
        sources: list[PushSource] = []
        arrays = envelope.arrays()
        for source in message.sources:
            places = [self.find(arrays[offset]) for offset in _offsets(source)]
            for place in places:
                if place is None or (region is not None and region is not place.region):
                    return None
                region = place.region
            offsets = [place.offset for place in places if place is not None]
            sources.append(msgspec.structs.replace(source, offset=offsets[0], activations_offset=offsets[-1]))
        if region is None:
            return None
        return DirectPush(region, msgspec.structs.replace(message, sources=tuple(sources), region=region.number))


def direct_pull(message: PullRequest, place: Place, starts: Iterable[int]) -> PullRequest:
    """Returns a pull into the flat vector at `place`; `starts` are the shards' first elements in it."""
    offsets = tuple(place.offset + start * ELEMENT_BYTES for start in starts)
    return msgspec.structs.replace(message, region=place.region.number, offsets=offsets)


async def forget_regions(connections: Iterable[Connection]) -> None:
    """Makes servers release renewed memory, by closing the connections: they keep shared memory until then.

    Otherwise a server that stays slow would hold an old copy for each abandoned request. Other requests in flight there
    are sent again.
    """
    await asyncio.gather(*(connection.close() for connection in set(connections)))


def _offsets(source: PushSource) -> tuple[int, ...]:
    return (source.offset, source.activations_offset) if source.examples else (source.offset,)

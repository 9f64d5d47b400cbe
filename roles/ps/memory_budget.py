"""Allocates memory for buckets' arrays, in large pages if available, and keeps account of how much is used.

A batch passes over shards of a megabyte each. With 4 KiB pages the processor's TLB covers only a few megabytes and is
refilled all the time, so that a pass over many shards takes 1.5 times as long as with 2 MiB pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from weakref import finalize

import numpy as np

from adamctl.kernels.array import LINE, Array
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.net.large_pages import map_memory

RECYCLED_SIZE_MIN = 1 << 14


def side_by_side(arrays: Sequence[Array]) -> list[Array]:
    """Returns copies of flat float32 arrays in one block of memory, which is freed with the last of them."""
    starts = np.cumsum([0, *(-(-array.size // LINE) * LINE for array in arrays)]).tolist()
    flat = np.frombuffer(map_memory(max(starts[-1], 1) * ELEMENT_BYTES), np.float32)
    copies = [flat[start : start + array.size] for start, array in zip(starts, arrays, strict=False)]
    for copy, array in zip(copies, arrays, strict=True):
        copy[:] = array
    return copies


class RecycledMemory:
    """Reuses the memory of freed arrays for new ones of the same size; usable from any thread.

    Fresh memory is zeroed by the system page by page at the first write, which takes longer than copying into it.

    Attributes:
        idle_bytes_max: how much unused memory is kept per size. Sizes are those of the shards of living jobs: see
            `forget`.
    """

    def __init__(self, idle_bytes_max: int = 32 << 20) -> None:
        self.idle_bytes_max = idle_bytes_max
        self._idle: dict[int, deque[bytearray]] = {}

    def new(self, size: int) -> Array:
        """Returns a flat, uninitialized float32 array. Its memory is recycled when its last view is gone."""
        if size < RECYCLED_SIZE_MIN:
            return np.empty(size, np.float32)
        idle = self._idle.get(size)
        if idle is None:
            idle = self._idle[size] = deque(maxlen=max(self.idle_bytes_max // (ELEMENT_BYTES * size), 2))
        try:
            block = idle.pop()
        except IndexError:
            block = bytearray(ELEMENT_BYTES * (size + LINE))
        # Views keep a reference to the array directly above the bytes, so `flat` lives as long as any view.
        address = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
        flat = np.frombuffer(block, np.float32, size, -address % (ELEMENT_BYTES * LINE))
        finalize(flat, idle.append, block).atexit = False
        return flat

    def forget(self) -> None:
        """Frees what is unused, and what is in use when it comes back: call it when a job has ended."""
        self._idle = {}


class MemoryAccount:
    """Accounts for the memory of buckets on one server.

    Attributes:
        bytes_max: the limit in bytes; spare buffers for concurrent readers come on top.
        building: job -> bytes of buckets that are being built.
        copies: (job, bucket) -> bytes of a copy of a bucket that is not served here.
    """

    def __init__(
        self, node: str, bytes_max: int, served_bytes: Callable[[], int], spare: Callable[[], None] = lambda: None
    ) -> None:
        """`served_bytes`: returns the size of served buckets; `spare`: frees what can be read from disk again."""
        self.bytes_max = bytes_max
        self.building: dict[str, int] = {}
        self.copies: dict[tuple[str, int], int] = {}
        self._node, self._served_bytes, self._spare = node, served_bytes, spare

    @property
    def held_bytes(self) -> int:
        return self._served_bytes() + sum(self.building.values()) + sum(self.copies.values())

    def problem(self, job: str, needed_bytes: int) -> str | None:
        """Returns why a job cannot have `needed_bytes` more, None if it can."""
        if self.held_bytes + needed_bytes > self.bytes_max:
            self._spare()
        held_bytes = self.held_bytes
        if held_bytes + needed_bytes <= self.bytes_max:
            return None
        return (
            f"{self._node} uses {held_bytes >> 20} of {self.bytes_max >> 20} MiB and job {job!r} needs "
            f"{needed_bytes >> 20} MiB more; add servers or raise --memory"
        )

    def begin(self, job: str, size_bytes: int) -> None:
        """Adds buckets of a job that are going to be built."""
        self.building[job] = self.building.get(job, 0) + size_bytes

    def end(self, job: str, size_bytes: int) -> None:
        """Removes buckets that are built or abandoned; others of a job of this name may still be in progress."""
        left_bytes = self.building.pop(job) - size_bytes
        if left_bytes:
            self.building[job] = left_bytes

    def free_copies(self, job: str) -> None:
        """Removes all copies of a job."""
        for key in [key for key in self.copies if key[0] == job]:
            del self.copies[key]

"""Memory for a bucket's arrays, in large pages where the system has them, and how much of it there is.

A batch walks through shards of a megabyte each. In pages of 4 KiB the processor's table of recently used pages holds a
few megabytes and is refilled all the time, and a pass over many shards takes half as long again as in pages of 2 MiB.
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
    """Returns copies of flat float32 arrays that lie in one piece of memory, which goes with the last of them."""
    starts = np.cumsum([0, *(-(-array.size // LINE) * LINE for array in arrays)]).tolist()
    flat = np.frombuffer(map_memory(max(starts[-1], 1) * ELEMENT_BYTES), np.float32)
    copies = [flat[start : start + array.size] for start, array in zip(starts, arrays, strict=False)]
    for copy, array in zip(copies, arrays, strict=True):
        copy[:] = array
    return copies


class RecycledMemory:
    """Memory of arrays that nobody uses any more, for others of the same size; to be used from any thread.

    What comes fresh from the system is cleared page by page when it is first written to, which takes longer than
    copying into it.

    Attributes:
        idle_bytes_max: kept of each size.
    """

    def __init__(self, idle_bytes_max: int = 32 << 20) -> None:
        self.idle_bytes_max = idle_bytes_max
        self._idle: dict[int, deque[bytearray]] = {}

    def new(self, size: int) -> Array:
        """Returns a flat array of float32, its contents anything. Its memory comes back with the last view of it."""
        if size < RECYCLED_SIZE_MIN:
            return np.empty(size, np.float32)
        idle = self._idle.get(size)
        if idle is None:
            idle = self._idle[size] = deque(maxlen=max(self.idle_bytes_max // (ELEMENT_BYTES * size), 2))
        try:
            block = idle.pop()
        except IndexError:
            block = bytearray(ELEMENT_BYTES * (size + LINE))
        # Views of an array hold on to the last array before the bytes, so this one lives as long as any of them.
        address = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
        flat = np.frombuffer(block, np.float32, size, -address % (ELEMENT_BYTES * LINE))
        finalize(flat, idle.append, block).atexit = False
        return flat


class MemoryAccount:
    """What the buckets on one server take of what they may take.

    Attributes:
        bytes_max: that, in bytes; buffers for writing beside readers come on top.
        building: job -> bytes of buckets that are being made.
        copies: (job, bucket) -> bytes of a copy of a bucket that is not served here.
    """

    def __init__(
        self, node: str, bytes_max: int, served_bytes: Callable[[], int], spare: Callable[[], None] = lambda: None
    ) -> None:
        """`served_bytes` says what buckets take that are served; `spare` gives up what can be read from disk again."""
        self.bytes_max = bytes_max
        self.building: dict[str, int] = {}
        self.copies: dict[tuple[str, int], int] = {}
        self._node, self._served_bytes, self._spare = node, served_bytes, spare

    @property
    def held_bytes(self) -> int:
        return self._served_bytes() + sum(self.building.values()) + sum(self.copies.values())

    def problem(self, job: str, needed_bytes: int) -> str | None:
        """Returns why a job cannot have so much more, None if it can."""
        if self.held_bytes + needed_bytes > self.bytes_max:
            self._spare()
        held_bytes = self.held_bytes
        if held_bytes + needed_bytes <= self.bytes_max:
            return None
        return (
            f"{self._node} has {held_bytes >> 20} of {self.bytes_max >> 20} MiB in use and job {job!r} needs "
            f"{needed_bytes >> 20} more; add servers or raise --memory"
        )

    def begin(self, job: str, size_bytes: int) -> None:
        """Buckets of a job begin to be made."""
        self.building[job] = self.building.get(job, 0) + size_bytes

    def end(self, job: str, size_bytes: int) -> None:
        """They are made, or given up; another part of the job, or of one that has its name, may still be."""
        left_bytes = self.building.pop(job) - size_bytes
        if left_bytes:
            self.building[job] = left_bytes

    def free_copies(self, job: str) -> None:
        """A job is no longer held."""
        for key in [key for key in self.copies if key[0] == job]:
            del self.copies[key]

"""Page-aligned buffers in powers of two from 4 KiB to 32 MiB, with reference counts and one byte quota (Adam 3.3.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from adamctl.errors import BackpressureError
from adamctl.net.large_pages import map_memory

SIZE_BYTES_MIN = 4 << 10
SIZE_BYTES_MAX = 32 << 20


@dataclass(frozen=True)
class PoolStatistics:
    """A pool's state. Always `outstanding_bytes + cached_bytes <= quota_bytes`; bytes count whole buffers."""

    quota_bytes: int
    outstanding_bytes: int
    cached_bytes: int
    outstanding_buffers: int
    peak_outstanding_bytes: int
    allocations: int
    reused: int
    refused: int
    lost: int


class PooledBuffer:
    """A counted reference to a buffer. `view` has the requested length; it is invalid after the last `release`.

    `retain` and `release` may be called from any thread.
    """

    __slots__ = ("_memory", "_pool", "_references", "view")

    def __init__(self, pool: BufferPool, memory: memoryview, size_bytes: int) -> None:
        self._pool = pool
        self._memory = memory
        self._references = 1
        self.view = memory[:size_bytes]

    @property
    def capacity_bytes(self) -> int:
        return len(self._memory)

    @property
    def references(self) -> int:
        return self._references

    def retain(self) -> None:
        """Adds a reference. Raises RuntimeError if the buffer was already returned."""
        with self._pool._lock:
            if self._references <= 0:
                raise RuntimeError("a pooled buffer was retained after its last release")
            self._references += 1

    def release(self) -> None:
        """Drops one reference; the last one returns the buffer. Raises RuntimeError if none is left."""
        self._pool._release(self)

    def __del__(self) -> None:
        if self._references > 0:
            self._pool._lost.append(len(self._memory))


class BufferPool:
    """Buffers for the bodies of frames. Thread-safe.

    Args:
        quota_bytes: upper bound of outstanding and cached buffers together.
        cached_bytes_max: how much of it may be cached for the next allocations (default: a quarter of it).
    """

    def __init__(self, quota_bytes: int, *, cached_bytes_max: int | None = None) -> None:
        if quota_bytes < SIZE_BYTES_MIN:
            raise ValueError(f"the quota must be at least {SIZE_BYTES_MIN} bytes, found {quota_bytes}")
        self.quota_bytes = quota_bytes
        self.cached_bytes_max = quota_bytes // 4 if cached_bytes_max is None else cached_bytes_max
        self._lock = Lock()  # guards everything below, and every buffer's references
        self._free: dict[int, list[memoryview]] = {}
        self._outstanding_bytes = 0
        self._cached_bytes = 0
        self._outstanding_buffers = 0
        self._peak = 0
        self._allocations = 0
        self._reused = 0
        self._refused = 0
        self._lost_total = 0
        self._waiters: deque[Callable[[], None]] = deque()
        # Capacities of buffers dropped without release. Appended without the lock: the garbage collector may run
        # inside it.
        self._lost: deque[int] = deque()

    def allocate(self, size_bytes: int) -> PooledBuffer:
        """Returns a buffer of `size_bytes` with one reference; its content is undefined.

        Raises:
            BackpressureError: the quota is used up now.
            ValueError: longer than 32 MiB.
        """
        buffer = self.try_allocate(size_bytes)
        if buffer is None:
            raise BackpressureError(
                f"no room for a buffer of {size_bytes} bytes: {self._outstanding_bytes} of {self.quota_bytes} "
                "are in use; wait until some are released"
            )
        return buffer

    def try_allocate(self, size_bytes: int) -> PooledBuffer | None:
        """Like `allocate`, but returns None if the quota is used up."""
        capacity = capacity_for(size_bytes)
        with self._lock:
            self._reclaim_lost()
            if self._outstanding_bytes + capacity > self.quota_bytes:
                self._refused += 1
                return None
            free = self._free.get(capacity)
            if free:
                memory = free.pop()
                self._cached_bytes -= capacity
                self._reused += 1
            else:
                self._evict(self._outstanding_bytes + self._cached_bytes + capacity - self.quota_bytes)
                memory = memoryview(map_memory(capacity))
            self._allocations += 1
            self._outstanding_buffers += 1
            self._outstanding_bytes += capacity
            self._peak = max(self._peak, self._outstanding_bytes)
        return PooledBuffer(self, memory, size_bytes)

    def when_released(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, in the thread that returns the next buffer; callbacks run first in, first out."""
        with self._lock:
            self._waiters.append(callback)

    def statistics(self) -> PoolStatistics:
        with self._lock:
            self._reclaim_lost()
            return PoolStatistics(
                self.quota_bytes,
                self._outstanding_bytes,
                self._cached_bytes,
                self._outstanding_buffers,
                self._peak,
                self._allocations,
                self._reused,
                self._refused,
                self._lost_total,
            )

    def _release(self, buffer: PooledBuffer) -> None:
        with self._lock:
            if buffer._references <= 0:
                raise RuntimeError("a pooled buffer was released too often")
            buffer._references -= 1
            if buffer._references:
                return
            capacity = len(buffer._memory)
            self._outstanding_bytes -= capacity
            self._outstanding_buffers -= 1
            if self._cached_bytes + capacity <= self.cached_bytes_max:
                self._free.setdefault(capacity, []).append(buffer._memory)
                self._cached_bytes += capacity
            waiters = list(self._waiters)
            self._waiters.clear()
        for callback in waiters:
            callback()

    def _evict(self, excess_bytes: int) -> None:
        """Drops cached buffers, largest first, until `excess_bytes` are freed. Called with the lock held."""
        for capacity in sorted(self._free, reverse=True):
            free = self._free[capacity]
            while free and excess_bytes > 0:
                free.pop()
                self._cached_bytes -= capacity
                excess_bytes -= capacity

    def _reclaim_lost(self) -> None:
        while self._lost:
            self._outstanding_bytes -= self._lost.popleft()
            self._outstanding_buffers -= 1
            self._lost_total += 1


def capacity_for(size_bytes: int) -> int:
    """Returns the power of two that holds `size_bytes`. Raises ValueError above 32 MiB."""
    if size_bytes > SIZE_BYTES_MAX:
        raise ValueError(f"expected at most {SIZE_BYTES_MAX} bytes for a pooled buffer, found {size_bytes}")
    return max(SIZE_BYTES_MIN, 1 << (size_bytes - 1).bit_length()) if size_bytes > 0 else SIZE_BYTES_MIN

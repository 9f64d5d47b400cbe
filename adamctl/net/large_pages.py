"""Memory in large pages if the system has them: sequential access to it is faster."""

from __future__ import annotations

import mmap
from contextlib import suppress

LARGE_PAGE_BYTES = 2 << 20


def map_memory(size_bytes: int) -> mmap.mmap:
    """Returns zeroed anonymous memory; in large pages if it is at least one page long and the system has them."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= LARGE_PAGE_BYTES:
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory

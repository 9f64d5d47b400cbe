"""Memory in large pages where the system has them: what is walked through from end to end is walked through faster."""

from __future__ import annotations

import mmap
from contextlib import suppress

LARGE_PAGE_BYTES = 2 << 20


def map_memory(size_bytes: int) -> mmap.mmap:
    """Returns anonymous memory, all zero; in large pages if it is as long as one of them and the system has some."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= LARGE_PAGE_BYTES:
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory

"""What only the garbage collector frees. In a role it runs seldom, so what is let go often must not need it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[list[object]]:
    """Yields what the collector finds of the block, filled at its end."""
    found: list[object] = []
    gc.collect()
    before = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(before)
        gc.garbage.clear()

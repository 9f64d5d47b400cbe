"""When the garbage collector runs in a role: seldom, and never for long.

Reference counts free what requests allocate. Objects that refer to each other in a circle, such as an error and the
frames of its traceback, wait for the collector; those that have grown old before they were let go, for a collection of
everything, which Python begins only after millions of further objects. A role lives for weeks, so it begins one itself.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

ALLOCATIONS = 50_000
"""Objects that are made and not freed between two collections of young ones."""
EVERY_S = 600.0
LONG_S = 0.005
"""Processor time of a collection after which what it has left is frozen, so that the next ones are shorter."""
LOOK_S = 1.0


def collect_seldom() -> None:
    """Has young objects collected seldom, and none that exist now: traversing all modules would block the loop."""
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 20, 50)


async def collect_old(ready: Callable[[], bool]) -> None:
    """Frees circles that are of no use, every EVERY_S seconds, but for what there is that long after the role is ready.

    That is frozen: never traversed again, so its circles are never freed. By then kernels of its jobs are loaded, half
    of all objects. If kernels are loaded later, one collection is long, which takes some 50 ms.
    """
    while not ready():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(EVERY_S)
    gc.freeze()
    while True:
        await asyncio.sleep(EVERY_S)
        began_s = time.thread_time()
        gc.collect()
        if time.thread_time() - began_s > LONG_S:
            gc.freeze()

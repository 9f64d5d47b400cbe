"""Memory for a bucket's arrays, in large pages where the system has them.

A batch walks through shards of a megabyte each. In pages of 4 KiB the processor's table of recently used pages holds a
few megabytes and is refilled all the time, and a pass over many shards takes half as long again as in pages of 2 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.net.large_pages import map_memory

LINE = 16  # elements: every array starts on its own 64-byte cache line


def side_by_side(arrays: Sequence[Array]) -> list[Array]:
    """Returns copies of flat float32 arrays that lie in one piece of memory, which goes with the last of them."""
    starts = np.cumsum([0, *(-(-array.size // LINE) * LINE for array in arrays)]).tolist()
    flat = np.frombuffer(map_memory(max(starts[-1], 1) * ELEMENT_BYTES), np.float32)
    copies = [flat[start : start + array.size] for start, array in zip(starts, arrays, strict=False)]
    for copy, array in zip(copies, arrays, strict=True):
        copy[:] = array
    return copies

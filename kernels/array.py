"""Types that all kernels share."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
FLOAT32 = np.dtype(np.float32)
LINE = 16
"""Elements in a cache line of 64 bytes: adjacent arrays each start on their own line."""

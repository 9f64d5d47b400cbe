"""The names of what every kernel computes with."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
FLOAT32 = np.dtype(np.float32)
LINE = 16
"""Elements of a cache line of 64 bytes: arrays that lie side by side each start on one of their own."""

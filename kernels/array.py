"""The names of what every kernel computes with."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
FLOAT32 = np.dtype(np.float32)

"""Sources of numbered examples for the tests of block order: they count what is read."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DamagedDataError
from adamctl.roles.data.readers.source import FileSplit, Labels


class NumberedSource:
    """Examples of 3 float32 values, each the example's number, plus a million in the test part."""

    format = "numbers"
    origin = "numbers"
    classes = ("0", "1", "2")
    example_shape = (3,)
    dtype = np.dtype(np.float32)
    value_max = 1.0
    resident = False
    resident_bytes = 0
    stored_bytes = 0

    def __init__(self, examples: int, test: int = 0) -> None:
        self._labels: dict[FileSplit, Labels] = {
            "train": (np.arange(examples) % 3).astype(np.int32),
            "test": (np.arange(test) % 3).astype(np.int32),
        }
        self.reads: Counter[tuple[str, int]] = Counter()
        self.calls = 0
        self.damaged: set[int] = set()
        self._lock = threading.Lock()

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        with self._lock:
            self.calls += 1
            self.reads.update((split, int(index)) for index in indices)
        for index in indices:
            if int(index) in self.damaged:
                raise DamagedDataError(f"numbers: example {index} is damaged")
        out[...] = indices[:, None] + (1_000_000 if split == "test" else 0)


class BlockSource(NumberedSource):
    """One that reads blocks of 5, 9, 2, 7, 5, 9, ... examples."""

    sequential = True
    lengths = (5, 9, 2, 7)

    def blocks(self, split: FileSplit) -> NDArray[np.int64]:
        left, found = len(self.labels(split)), []
        while left > 0:
            found.append(min(left, self.lengths[len(found) % len(self.lengths)]))
            left -= found[-1]
        return np.array(found, np.int64)

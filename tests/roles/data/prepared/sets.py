"""Small sources and prepared sets for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.roles.data.prepared.prepare import prepare
from adamctl.roles.data.readers.source import FileSplit, TableSource


def source(train: int = 3000, test: int = 50, dtype: type = np.uint8) -> TableSource:
    """Returns images [4, 3, 1] whose values and labels tell their numbers."""

    def part(count: int, first: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
        numbers = np.arange(first, first + count)
        pixels = np.stack([numbers % 251, numbers // 251, *[numbers % 7] * 10], axis=1).astype(dtype)
        return pixels.reshape(count, 4, 3), (numbers % 3).astype(np.int32)

    arrays: dict[FileSplit, tuple[NDArray[Any], NDArray[np.int32]]] = {
        "train": part(train, 0),
        "test": part(test, 9000),
    }
    value_max = 255.0 if dtype is np.uint8 else 1.0
    return TableSource(
        "npz", arrays, value_max=value_max, stored_bytes=1, input_shape=None, origin="here", classes=("a", "b", "c")
    )


def prepared(folder: Path, of: Any = None) -> Path:
    """Returns a folder with the prepared set of a source."""
    prepare(of or source(), folder, seed=3, threads=2, made_from="npz here")
    return folder


def numbers(values: NDArray[Any]) -> list[int]:
    """Returns which examples these are."""
    flat = values.reshape(len(values), 12).astype(np.int64)
    return (flat[:, 0] + 251 * flat[:, 1]).tolist()  # type: ignore[no-any-return]

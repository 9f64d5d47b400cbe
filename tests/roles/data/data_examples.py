"""Made-up examples for the tests of data servers."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.roles.data.readers.source import TableSource

CODES = {"uint8": 0x08, "int32": 0x0C, "float32": 0x0D}


def idx_bytes(values: NDArray[Any]) -> bytes:
    """Returns an IDX file with these values."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, CODES[values.dtype.name], values.ndim, *values.shape)
    return header + values.astype(values.dtype.newbyteorder(">")).tobytes()


def pattern(examples: int, side: int = 4, first: int = 0) -> NDArray[np.uint8]:
    """Returns images whose every pixel is the example's number, modulo 256."""
    numbers = (np.arange(first, first + examples) % 256).astype(np.uint8)
    return np.broadcast_to(numbers[:, None, None], (examples, side, side)).copy()


def source_of(images: NDArray[Any], value_max: float = 255.0, kind: type[Any] = TableSource) -> Any:
    """Returns a source of this kind, with these training images, all of one class, and no others."""
    labels = np.zeros(len(images), np.int32)
    parts = {"train": (images, labels), "test": (images[:0], labels[:0])}
    return kind("npz", parts, value_max=value_max, stored_bytes=0, input_shape=None, origin="test")

"""How examples lie in the body of a DATA_READ reply: the same numbers for the server that writes it and its readers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from adamctl.wire.constants import BODY_ALIGNMENT_BYTES, BODY_BYTES_MAX

DTYPES: Final = ("uint8", "float32")
LABEL_BYTES: Final = 4  # an int32 label; a target is a float32


class BodyLayout(NamedTuple):
    """Where parts of a body begin, and how long it is, in bytes; the examples begin at 0."""

    labels_offset: int
    size_bytes: int


class ExampleForm(NamedTuple):
    """What one example is on the wire: `elements` values of `dtype`, as in the files, and an int32 label."""

    elements: int
    dtype: str = "float32"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @property
    def example_bytes(self) -> int:
        return self.elements * self.numpy_dtype.itemsize

    def body(self, examples: int) -> BodyLayout:
        """Returns the layout of a body of so many examples: their values, then, aligned, their labels."""
        labels_offset = _aligned(examples * self.example_bytes)
        return BodyLayout(labels_offset, labels_offset + examples * LABEL_BYTES)

    @property
    def examples_per_read_max(self) -> int:
        """How many examples fit into one body; 0 if not even one does."""
        return (BODY_BYTES_MAX - BODY_ALIGNMENT_BYTES) // (self.example_bytes + LABEL_BYTES)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // BODY_ALIGNMENT_BYTES) * BODY_ALIGNMENT_BYTES

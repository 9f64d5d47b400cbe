"""How examples lie in the body of a DATA_READ reply: the same numbers for the server that writes it and its readers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.wire.constants import BODY_ALIGNMENT_BYTES, BODY_BYTES_MAX

DTYPES: Final = ("uint8", "float32")
LABEL_BYTES: Final = 4  # an int32 label; a target is a float32
POSITION_BYTES: Final = 4  # an int32
VALUE_BYTES: Final = 4  # a float32, scaled


class BodyLayout(NamedTuple):
    """Where parts of a body begin, and how long it is, in bytes; the examples begin at 0.

    `positions_offset` is 0 in a body that has the examples of a whole range.
    """

    labels_offset: int
    positions_offset: int
    size_bytes: int


class ExampleForm(NamedTuple):
    """What one example is on the wire: `elements` values of `dtype`, as in the files, and what is known of it.

    That is an int32 label, the number of its class, or, if `targets` is not 0, so many float32 numbers. With
    `targets_are_inputs` its reader compares outputs with its values, so that nothing more is sent.
    """

    elements: int
    dtype: str = "float32"
    targets: int = 0
    targets_are_inputs: bool = False

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @property
    def example_bytes(self) -> int:
        return self.elements * self.numpy_dtype.itemsize

    @property
    def label_bytes(self) -> int:
        return LABEL_BYTES * max(self.targets, 1)

    @property
    def scaled_bytes(self) -> int:
        """What a reader holds of an example: its values as float32, and its label or targets."""
        return VALUE_BYTES * self.elements + self.label_bytes

    def label_shape(self, examples: int) -> tuple[int, ...]:
        """Returns the shape of the labels, or targets, of so many examples."""
        return (examples, self.targets) if self.targets else (examples,)

    @property
    def label_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.targets else np.int32)

    def answers(self, images: NDArray[np.float32], labels: NDArray[Any]) -> NDArray[Any]:
        """Returns what outputs are compared with: labels or targets as they were sent, or the inputs [n, elements]."""
        return images.reshape(len(images), self.elements) if self.targets_are_inputs else labels

    def body(self, examples: int, positions: int = 0) -> BodyLayout:
        """Returns the layout of a body: examples' values, then, aligned, their labels or targets, then positions."""
        labels_offset = _aligned(examples * self.example_bytes)
        end = labels_offset + examples * self.label_bytes
        return BodyLayout(labels_offset, end if positions else 0, end + positions * POSITION_BYTES)

    @property
    def examples_per_read_max(self) -> int:
        """How many examples fit into one body; 0 if not even one does."""
        return (BODY_BYTES_MAX - BODY_ALIGNMENT_BYTES) // (self.example_bytes + self.label_bytes + POSITION_BYTES)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // BODY_ALIGNMENT_BYTES) * BODY_ALIGNMENT_BYTES

"""What the processes of a prediction share: what partitions show each other, examples on their way in, outputs out.

All of it is one piece of memory, whose layout each process derives from the plan. So a process inherits one descriptor,
and nothing has to be introduced to anybody.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.operation import Array
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.net.shared_memory import whole_pages

FLOAT_BYTES = 4


class GroupMemory:
    """The arrays of a group.

    Attributes:
        partitions: what each partition shows the others.
        examples: of each context, [batch, *input].
        outputs: of each context, of the last stage, [batch, units].
    """

    def __init__(self, network: CutNetwork, batch: int, flights: int, memory: NDArray[np.uint8]) -> None:
        """`memory`: `size_bytes` of it."""
        self.partitions: list[SharedMemory] = []
        start = 0
        for number in range(network.partitions):
            layout = SharedLayout(network, number, batch, flights, forward_only=True)
            self.partitions.append(SharedMemory(layout, memory[start : start + layout.size_bytes]))
            start += whole_pages(layout.size_bytes)
        self.examples: list[Array] = []
        self.outputs: list[Array] = []
        for shape, arrays in zip(_shapes(network, batch), (self.examples, self.outputs), strict=True):
            size = FLOAT_BYTES * prod(shape)
            for _ in range(flights):
                arrays.append(memory[start : start + size].view(np.float32).reshape(shape))
                start += whole_pages(size)

    @staticmethod
    def size_bytes(network: CutNetwork, batch: int, flights: int) -> int:
        """Returns how much memory a group needs."""
        layouts = (
            SharedLayout(network, number, batch, flights, forward_only=True) for number in range(network.partitions)
        )
        shown = sum(whole_pages(layout.size_bytes) for layout in layouts)
        return shown + flights * sum(whole_pages(FLOAT_BYTES * prod(shape)) for shape in _shapes(network, batch))


def _shapes(network: CutNetwork, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of a flight's examples and outputs."""
    units = network.stages[-1].layers[-1].operation.output_shape[0]
    return (batch, *network.model.input), (batch, units)

"""What the processes of a prediction share lies in one piece of memory, each array in its own place."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.native import address_of
from adamctl.kernels.partition.memory import SharedLayout
from adamctl.kernels.partition.stages import cut_network
from adamctl.launch.prediction.memory import GroupMemory
from tests.kernels.partition.test_member import BATCH, IMAGES, ROWS_AND_UNITS


def test_arrays_fill_the_memory_and_do_not_overlap() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, "numpy")
    whole = np.zeros(GroupMemory.size_bytes(network, BATCH, 3), np.uint8)
    memory = GroupMemory(network, BATCH, 3, whole)
    assert [one.shape for one in memory.examples] == [(BATCH, 11, 9, 2)] * 3
    assert [one.shape for one in memory.outputs] == [(BATCH, 5)] * 3
    places = [(address_of(one), one.nbytes) for one in (*memory.examples, *memory.outputs)]
    for number, partition in enumerate(memory.partitions):
        size = SharedLayout(network, number, BATCH, 3, forward_only=True).size_bytes
        places.append((address_of(partition.sleepers), size))
    end = address_of(whole)
    for start, size in sorted(places):
        assert start >= end
        end = start + size
    assert end <= address_of(whole) + whole.nbytes


def test_two_processes_find_the_same_places() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, "numpy")
    whole = np.zeros(GroupMemory.size_bytes(network, BATCH, 2), np.uint8)
    one, other = (GroupMemory(network, BATCH, 2, whole) for _ in range(2))
    one.examples[1][...], one.outputs[0][...] = 5, 7
    one.partitions[1].sleepers[0] = 9
    assert (other.examples[1] == 5).all() and (other.outputs[0] == 7).all() and (other.outputs[1] == 0).all()
    assert (other.partitions[1].sleepers[0], other.partitions[0].sleepers[0]) == (9, 0)

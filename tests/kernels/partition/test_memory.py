"""What partitions show each other lies where all of them expect it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adamctl.kernels.partition.memory import WORD_BYTES, BlockName, SharedLayout, SharedMemory
from adamctl.kernels.partition.stages import StageCut, cut_network
from tests.kernels.partition.test_member import BATCH, IMAGES, ROWS_AND_UNITS, UNEVEN


@pytest.mark.parametrize("cuts", [ROWS_AND_UNITS, UNEVEN])
def test_blocks_and_words_lie_apart(cuts: list[StageCut]) -> None:
    network = cut_network(IMAGES, cuts, "numpy")
    for partition in range(network.partitions):
        layout = SharedLayout(network, partition, BATCH, 3)
        memory = SharedMemory(layout, np.zeros(layout.size_bytes, np.uint8))
        names = list(layout.places)
        for number, name in enumerate(names, 1):
            memory.word(name)[0] = number
            memory.array(name)[...] = number
        memory.sleepers[0] = -1
        for number, name in enumerate(names, 1):
            assert memory.word(name)[0] == number
            assert (memory.array(name) == number).all()
            assert layout.places[name].word_bytes % WORD_BYTES == 0
            assert layout.places[name].offset_bytes % WORD_BYTES == 0


def test_only_what_another_one_reads_is_shown() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, "numpy")
    first, second = (set(SharedLayout(network, partition, BATCH, 1).places) for partition in range(2))
    assert BlockName("output", 0, 0) in second, "windows of the first part reach into it"
    assert BlockName("output", 0, 0) not in first, "and none of the second part into the first"
    assert BlockName("output", 3, 0) in first and BlockName("output", 3, 0) in second, "the loss needs all"
    assert BlockName("error", 0, 0) not in first, "nobody needs the error at the images"
    assert BlockName("error", 1, 0) in first and BlockName("partial", 0, 0) in second
    assert BlockName("partial", 4, 0) not in first, "units of a dense layer are no one else's"
    whole = [cut._replace(parts=(replace(one, start=0),)) for cut in ROWS_AND_UNITS if (one := cut.parts[-1])]
    assert not SharedLayout(cut_network(IMAGES, whole, "numpy"), 0, BATCH, 2).places

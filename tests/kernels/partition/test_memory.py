"""What partitions show each other lies where all of them expect it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adamctl.kernels.partition.memory import WORD_BYTES, BlockName, SharedLayout, SharedMemory
from adamctl.kernels.partition.regions import intersection
from adamctl.kernels.partition.stages import StageCut, cut_network
from adamctl.model.description import Conv2D, Dense, Model
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import (
    BATCH,
    BY_ROWS,
    CASES,
    IMAGES,
    LOCAL,
    ROWS_AND_UNITS,
    UNEVEN,
    cut,
    small_integers,
    whole,
)


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
        assert memory.words.tolist() == list(range(1, len(names) + 1))
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


@pytest.mark.parametrize("case", [*CASES.values(), (LOCAL, BY_ROWS), (IMAGES, ROWS_AND_UNITS)])
def test_a_copy_has_what_its_reader_reads_and_nothing_else(case: tuple[Model, list[StageCut]]) -> None:
    """Together, whole batches of all blocks are the bytes that the plan says."""
    network = cut_network(case[0], case[1], "numpy")
    everyone = range(network.partitions)
    for partition in everyone:
        shown = SharedLayout(network, partition, BATCH, 2).places
        for reader in everyone:
            if reader == partition:
                continue
            copy = SharedLayout(network, partition, BATCH, 2, reader)
            assert copy.size_bytes <= SharedLayout(network, partition, BATCH, 2).size_bytes
            for name, place in copy.places.items():
                origin = shown[name]
                assert place.dtype == origin.dtype
                assert intersection(place.box, origin.box) == place.box or name.kind == "free"
                sources = network.sources(name.number + 1, reader) if name.number + 1 < len(network.stages) else []
                if name.kind == "output" and sources:
                    assert (partition, place.box) in sources
                if name.kind == "error":
                    assert (reader, place.box) in network.sources(name.number, partition)
            unread = {name.kind for name in shown.keys() - copy.places.keys()}
            assert unread <= {"output", "error", "partial", "sum", "statistics"}


def test_an_owner_of_all_rows_sums_up_its_own_gradient() -> None:
    """One map has one owner, whose own partial gradient nobody else reads."""
    model = Model((6, 4, 1), (Conv2D(1, 3), Dense(2)), "squared_error")
    network = cut_network(model, cut(model, [("rows", [2, 4]), ("units", [1, 2])]), "numpy")
    weights, batch = small_integers(model, 3)
    expected, _, _ = whole(model, "numpy", weights, batch)
    replica = Replica(network, BATCH, 1, weights)
    ((gradients, _, _),) = replica.run([batch])
    for found, right in zip(replica.whole_gradients(gradients), expected, strict=True):
        np.testing.assert_array_equal(found, right)

"""What a member of a group pushes, and how many slots its flights have."""

from __future__ import annotations

import pytest

from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import SLOTS_PER_THREAD
from adamctl.roles.worker.partition.engine import owned_shards, pushed_tensors, slots_per_flight

MODEL = Model((12, 12, 1), (Conv2D(4, 3, activation="relu"), Dense(9, "relu"), Softmax(5)))


@pytest.mark.parametrize(("threads", "flights", "expected"), [(1, 2, 2), (2, 3, 3), (1, 1, 4), (1, 4, 2), (16, 17, 4)])
def test_open_flights_have_as_many_slots_as_their_threads_together(threads: int, flights: int, expected: int) -> None:
    found = slots_per_flight(threads, flights)
    assert found == expected and found * flights >= SLOTS_PER_THREAD * threads


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_members_push_each_row_of_each_tensor_once(partitions: int) -> None:
    layout = build_layout(MODEL, 2, make_plan(MODEL, partitions, {}).owners)
    rows = [0] * len(layout.tensors)
    for partition in range(partitions):
        for index, part in pushed_tensors(layout, owned_shards(layout, partition)).items():
            whole = layout.tensors[index]
            assert part.name == whole.name and part.shape[1:] == whole.shape[1:]
            rows[index] += part.shape[0]
    assert rows == [tensor.shape[0] for tensor in layout.tensors]

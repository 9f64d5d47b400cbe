"""Sums of bundles: one for each that is open, free again when it is pushed or forgotten."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.errors import RemoteError
from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.partition.program import Batch
from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.model.partition.rules import make_plan
from adamctl.roles.ps.client.parameter_client import BundleOutcome
from adamctl.roles.worker.core.bundle_work import Pull
from adamctl.roles.worker.partition.bundle_engine import PUSHED_AT_A_TIME, BundleEngine
from adamctl.roles.worker.partition.engine import owned_shards
from adamctl.roles.worker.partition.flight_engine import Parts
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.threads import Flight
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import GroupMember

MODEL = Model((12, 12, 1), (Conv2D(4, 3, activation="relu"), Dense(9, "relu"), Softmax(5)))
LAYOUT = build_layout(MODEL, 2, make_plan(MODEL, 2, {}).owners)
OWN, FLIGHTS = 1, 2
MEMBERS = tuple(GroupMember(f"w{one}", 1, "here", ()) for one in range(2))
GROUP = Group("job", 4, OWN, MEMBERS, "plan", 2, FLIGHTS)


class Servers:
    """What a client would do. `pushed`: the arguments of all pushes; `refused`: how they are answered."""

    def __init__(self) -> None:
        self.shared = SimpleNamespace(add=lambda memory: None)
        self.pushed, self.pulled = list[Any](), list[Any]()
        self.refused: dict[int, tuple[int, str]] = {}

    async def add_bundle(self, *of: Any, shards: Any) -> BundleOutcome:
        evaluation, number, weight, gradient = of
        self.pushed.append((evaluation, number, weight, gradient[0], shards))
        return BundleOutcome(self.refused)

    async def pull(self, into: Any, **of: Any) -> None:
        self.pulled.append((into, of))


def made() -> tuple[BundleEngine, Servers]:
    servers = Servers()
    nothing: Any = None
    parts = Parts(GROUP, nothing, LAYOUT, nothing, 1, 0, logging.getLogger("test_bundle_engine"))
    return BundleEngine(parts, nothing, servers, lambda done: None, lambda failure: None), servers  # type: ignore[arg-type]


def begin(engine: BundleEngine, number: int) -> SlotPlace | None:
    batch = Batch(np.zeros((2, 1), np.float32), np.zeros(2, np.int32))
    return engine.begin(number % FLIGHTS, Flight(number, batch))


async def test_the_portions_of_a_bundle_go_into_one_sum_which_is_empty_at_first() -> None:
    engine, _ = made()
    engine._filled[:] = 1
    engine.expect(1, [1, 2])
    engine.expect(3, [3])
    first = begin(engine, 1)
    assert first is not None and not engine._filled[first.slot]
    engine._filled[first.slot] = 1
    other = begin(engine, 3)
    assert other is not None and other != first
    assert begin(engine, 2) == first and engine._filled[first.slot] == 1
    await engine.close()


async def test_a_bundle_waits_while_all_sums_are_on_their_way() -> None:
    engine, servers = made()
    count = FLIGHTS + PUSHED_AT_A_TIME
    for number in range(1, count + 2):
        engine.expect(number, [number])
        assert (begin(engine, number) is None) == (number > count)
    assert begin(engine, count + 1) is None
    engine.forget(2)
    assert begin(engine, count + 1) is not None
    engine.expect(8, [8])
    assert begin(engine, 8) is None
    assert not await engine.push(3, 1, 5, 0.25)
    assert begin(engine, 8) is not None
    assert len(servers.pushed) == engine.pushes == 1
    await engine.close()


async def test_a_push_names_the_shards_that_the_partition_owns_and_the_sum_of_the_bundle() -> None:
    engine, servers = made()
    for number in (1, 2):
        engine.expect(number, [number])
        place = begin(engine, number)
        assert place is not None
        engine._sums[place.slot][0] = number
    owned = owned_shards(LAYOUT, OWN)
    assert 0 < len(owned) < len(LAYOUT.shards)
    bucket = LAYOUT.bucket_of_shard[owned[0]]
    servers.refused = {owned[0]: (ErrorCode.NO_VECTOR, "taken over")}
    assert await engine.push(2, 7, 5, 0.25) == {bucket: ErrorCode.NO_VECTOR}
    servers.refused = {owned[0]: (ErrorCode.WRONG_LENGTH, "too short")}
    with pytest.raises(RemoteError, match="too short"):
        await engine.push(1, 7, 4, 0.5)
    assert servers.pushed == [(7, 5, 0.25, 2.0, owned), (7, 4, 0.5, 1.0, owned)]
    assert len(engine._free) == FLIGHTS + PUSHED_AT_A_TIME and not engine.pushes
    await engine.close()


async def test_bundles_read_the_vector_of_the_evaluation_and_held_out_examples_the_parameters() -> None:
    engine, servers = made()
    assert await engine.pull(Pull(9, "t")) == []
    await engine.snapshot(1)
    (vector, of), (accepted, exact) = servers.pulled
    assert vector is engine.parameters and of == {"vector": "t", "evaluation": 9}
    assert accepted is not vector and exact == {"exact": True}
    await engine.close()

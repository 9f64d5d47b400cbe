"""Over real sockets, pushes are applied while they arrive where the loop's core is the only one there is for that."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from adamctl.roles.ps.apply.streaming import Arrival, ArrivalApplier
from adamctl.roles.ps.client.parameter_client import PushSet
from adamctl.roles.ps.core.arriving_push import ArrivingPush
from tests.net.world import until
from tests.roles.ps.test_sockets import attached, serving

PUSHES = 6


async def test_nothing_that_knows_a_body_waits_for_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[weakref.ref[Arrival]] = []
    begin = ArrivalApplier.begin

    def noted(self: ArrivalApplier, *arguments: Any) -> Arrival | None:
        arrival = begin(self, *arguments)
        if arrival is not None:
            begun.append(weakref.ref(arrival))
        return arrival

    monkeypatch.setattr(ArrivalApplier, "begin", noted)
    async with serving() as store:
        client = await attached(store, 1)
        push = PushSet(client.layout, 1.0)
        push.delta(0, np.zeros(client.layout.flat_size, np.float32))
        gc.collect()
        gc.disable()
        try:
            for _ in range(PUSHES):
                await client.push(push)
            await until(lambda: not any(one() for one in begun))
        finally:
            gc.enable()
        await client.close()
    assert len(begun) >= PUSHES


@pytest.mark.parametrize(("cores", "threads"), [(4, 0), (4, 1), (4, 2), (2, 2)])
async def test_pushes_are_applied_as_they_come(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adamctl.roles.ps.options.available_cores", lambda: cores)
    taken: list[bool] = []
    take = ArrivalApplier.take

    def noted(self: ArrivalApplier, push: ArrivingPush, piece: int, data: memoryview) -> bool:
        taken.append(take(self, push, piece, data))
        return taken[-1]

    monkeypatch.setattr(ArrivalApplier, "take", noted)
    async with serving(flags={"apply_threads": str(threads)}) as store:
        client = await attached(store, 1)
        before, after = (np.zeros(client.layout.flat_size, np.float32) for _ in range(2))
        await client.pull(before)
        push = PushSet(client.layout, 1.0)
        push.delta(0, np.arange(client.layout.flat_size, dtype=np.float32) % 1024)
        for _ in range(PUSHES):
            outcome = await client.push(push)
            assert outcome.updates == client.layout.parameter_count and not outcome.refused
        pulled = await client.pull(after)
        assert (pulled.pushes == PUSHES).all() and (pulled.sequences == PUSHES).all()
        np.testing.assert_allclose(after - before, PUSHES * push.updates[0].values, rtol=1e-4, atol=1e-3)
        await client.close()
    shards = len(client.layout.shards)
    if cores > threads > 1:
        assert not taken
    else:  # the first one is a stranger's
        assert taken == [False] * shards + [True] * shards * (PUSHES - 1)

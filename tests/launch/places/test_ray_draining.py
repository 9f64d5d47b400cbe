"""Ray as an engine, without Ray: no host is placed on a node that will be taken away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adamctl.launch.places import ray
from adamctl.launch.places.engines import EngineOptions


class Calls:
    """Of Ray, a cluster whose first node will be taken away, and which has no other that is free."""

    errors = (ConnectionError,)
    connected = False

    def __init__(self) -> None:
        self.left_out: list[set[str]] = []

    async def draining(self) -> dict[str, int]:
        return {"node-1": 0}

    async def node_of(self, group: Any, index: int) -> str:
        return "node-1"

    async def group(self, bundles: list[dict[str, float]], strategy: str, leave_out: set[str]) -> str:
        self.left_out.append(leave_out)
        return "a group"

    async def placed(self, group: Any, wait_s: float) -> bool:
        return False

    async def remove(self, group: Any) -> None: ...


async def test_a_replacement_is_not_placed_where_ray_takes_the_node_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "_ray", lambda: None)
    places = ray.RayPlaces(EngineOptions("digits/001", Path.cwd(), {}, lambda text: None))
    calls: Any = Calls()
    places._calls = calls
    places._free.append(ray._Bundle("a group", 0, False))
    watching = asyncio.create_task(places._watch_draining())
    await asyncio.sleep(0.05)
    assert not await places._try()
    watching.cancel()
    assert calls.left_out == [{"node-1"}] and len(places._free) == 1, "nor in the part of a group that was there"
    await places.end()

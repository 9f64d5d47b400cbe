"""`adamctl bench hosts`: each bar of runs on many hosts, with what it was found to be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from adamctl.bench.bars import Bar, Progress, row_of
from adamctl.bench.hosts import many, whole_runs
from adamctl.errors import AdamctlError

PARTS = ("placed", "front", "throughput", "role", "host")
BARS = {
    "placed": Bar("seconds until all roles at 300 agents serve, by 30 s", 1.0),
    "front": Bar("the front's share of a core, by 10%", 1.0),
    "throughput": Bar("examples per second through agents, by the same roles by hand", 0.97, at_least=True),
    "role": Bar("longest time without a counted example after a server is killed, by 1.5 s", 1.0),
    "host": Bar("the same after a host is frozen, by G + D/4 + 2 s = 8 s", 1.0),
}


async def measure(
    parts: Sequence[str], hosts: int, rounds: int, seconds: float, progress: Progress
) -> list[dict[str, Any]]:
    """Measures the parts, one after the other; one that cannot be measured says why."""
    rows: list[dict[str, Any]] = []
    agents: dict[str, Any] = {}

    async def at_agents() -> dict[str, Any]:
        if not agents:
            agents.update(await many.measure(hosts, seconds))
        return agents

    async def placed() -> dict[str, Any]:
        found = await at_agents()
        return {"ratio": found["placed_s"] / many.PLACED_S, **found}

    async def front() -> dict[str, Any]:
        found = await at_agents()
        return {"ratio": found["front_share"] / many.FRONT_SHARE, **found}

    async def role() -> dict[str, Any]:
        found = await whole_runs.role_killed()
        return {"ratio": found["stall_s"] / whole_runs.ROLE_S, **found}

    async def host() -> dict[str, Any]:
        found = await whole_runs.host_lost()
        return {"ratio": found["stall_s"] / whole_runs.HOST_S, **found}

    work: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "placed": placed,
        "front": front,
        "throughput": lambda: whole_runs.throughput(rounds, seconds),
        "role": role,
        "host": host,
    }
    for name in parts:
        progress(name)
        load = os.getloadavg()[0]
        try:
            found = await work[name]()
        except AdamctlError as error:
            found = {"cannot": str(error)}
        rows.append(row_of(name, BARS[name], found, load))
        await asyncio.sleep(0)
    return rows

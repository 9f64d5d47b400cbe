"""`kill -9` of one or two of three servers, again and again, while clients count (I4, I5, I6, I8)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.faults.servers_under_fire import Fire, Progress, under_fire
from tests.faults.tended_servers import QUICK_LEASE_S, SHORT_LEASE_S

KILLS = 1000
BLOCK = 50


async def kill_and_look(fire: Fire, chance: Random) -> int:
    """Kills one or two servers at a random moment, brings them back, and looks; returns how many."""
    nodes = chance.sample(fire.cluster.servers, chance.choice([1, 1, 2]))
    await asyncio.sleep(chance.choice([0.0, 0.05, 0.3]) * chance.random())
    for node in nodes:
        fire.kill(node)
        if len(nodes) > 1:
            await asyncio.sleep(chance.choice([0.0, 0.1, 0.5]) * chance.random())
    if len(nodes) == 1:
        await fire.progress(2)  # two copies are left
    await asyncio.sleep(chance.choice([0.0, 0.5]) * chance.random())  # sooner than a lease
    await fire.start(*nodes)
    await fire.whole()
    await fire.progress(2)
    await fire.check()
    return len(nodes)


async def kills(count: int, seed: int, lease_s: float = QUICK_LEASE_S) -> None:
    chance = Random(seed)
    async with under_fire(lease_s) as fire:
        done = 0
        while done < count:
            done += await kill_and_look(fire, chance)


async def test_a_few_kills_lose_nothing_and_apply_nothing_twice() -> None:
    await kills(2, 1)


@pytest.mark.slow
async def test_a_thousand_kills() -> None:
    """Goes on from the file that ADAMCTL_FAULTS_PROGRESS names, if that is set."""
    progress = Progress("ADAMCTL_FAULTS_PROGRESS")
    for done in range(progress.done, KILLS, BLOCK):
        await kills(BLOCK, 1000 + done, SHORT_LEASE_S)
        progress.reached(done + BLOCK)

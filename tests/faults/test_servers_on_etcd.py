"""Three copies, with etcd in the place of controllers: servers and a member of etcd are lost (I4, I5, I6, I8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adamctl.bench.failover.cluster import buckets_of
from adamctl.roles.configuration import nodes
from tests.faults.servers_under_fire import JOB, Fire, under_fire
from tests.faults.tended_servers import QUICK_LEASE_S, STARVED_S
from tests.roles.controller.etcd_server import etcd_cluster

LONG_LEASE_S = STARVED_S
CLIENTS = 2
AFTER_PUSHES = CLIENTS + 1
"""One more than may have been under way when a server was lost; each needs all servers."""


async def a_primary(fire: Fire) -> str:
    """Returns a server that serves something."""
    return min(record.primary for record in (await buckets_of(fire.store, JOB)).values())


async def whole_and_exact(fire: Fire) -> None:
    await fire.whole()
    await fire.progress(2)
    await fire.check()


async def kill_one(fire: Fire) -> None:
    node = await a_primary(fire)
    fire.kill(node)
    await fire.progress(AFTER_PUSHES)
    await asyncio.to_thread(fire.cluster.start, node)
    await whole_and_exact(fire)


async def stop_one(fire: Fire) -> None:
    node = await a_primary(fire)
    fire.cluster.stop(node)
    await fire.progress(AFTER_PUSHES)
    fire.cluster.go_on(node)
    await whole_and_exact(fire)


async def test_others_find_out_that_a_server_was_killed_long_before_its_lease_ends(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as etcd:
        async with under_fire(LONG_LEASE_S, CLIENTS, config_store=etcd.url) as fire:
            node = await a_primary(fire)
            fire.kill(node)
            await fire.progress(AFTER_PUSHES)
            assert node not in [record.node for record in await nodes(fire.store, "ps")]


async def test_what_a_killed_server_held_is_served_on_and_copied_again(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as etcd:
        async with under_fire(QUICK_LEASE_S, CLIENTS, config_store=etcd.url) as fire:
            await kill_one(fire)


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 3])
async def test_so_is_what_a_stopped_one_held_whichever_members_of_etcd_are_left(tmp_path: Path, members: int) -> None:
    with etcd_cluster(tmp_path, members) as etcd:
        async with under_fire(QUICK_LEASE_S, CLIENTS, config_store=etcd.url) as fire:
            await stop_one(fire)
            if members > 1:
                await asyncio.to_thread(etcd.kill, 0)
            await kill_one(fire)

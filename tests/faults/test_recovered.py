"""All three servers are killed at once, one comes back with an empty store and one never: an operator goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from adamctl.bench.failover.cluster import FailoverCluster, buckets_of
from adamctl.cli.cluster.state import ClusterReader
from adamctl.roles.configuration import nodes_of
from adamctl.roles.role_process import RoleCommand
from tests.cli.test_errors import adamctl
from tests.faults.servers_under_fire import JOB, Fire
from tests.faults.tended_servers import COPIES, QUICK_LEASE_S, WHOLE_S


class StoredCluster(FailoverCluster):
    """Its servers keep stores."""

    def store(self, node: str) -> Path:
        return self.folder / "stores" / node

    def _command(self, name: str) -> RoleCommand:
        command = super()._command(name)
        if command.role != "ps":
            return command
        return replace(command, arguments=(*command.arguments, "--store", str(self.store(name))))


async def lost_updates(fire: Fire) -> int:
    """At a quiet point: how many updates of shards were acknowledged and are in no value."""
    flat = np.zeros(fire.layout.flat_size, np.float32)
    await fire.clients[0].pull(flat, deadline_s=WHOLE_S)
    lost = 0
    for shard in fire.layout.shards:
        (value,) = set(flat[shard.offset : shard.offset + shard.size].tolist())
        lost += fire.acknowledged - int(value)
    return lost


async def command(fire: Fire, *arguments: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(adamctl, *arguments, "--controller", fire.cluster.keeper)
    return done.returncode, done.stdout, done.stderr


async def saved(fire: Fire) -> None:
    """Returns when every server has written something of every bucket."""
    async with asyncio.timeout(WHOLE_S), ClusterReader([fire.cluster.keeper], "") as reader:
        while True:
            servers = nodes_of((await fire.store.read("/nodes/"))[1], "ps")
            records = [status["store"]["records"] for status in await reader.statuses(servers)]
            if len(records) == COPIES and min(records) > len(fire.layout.shards):
                return
            await asyncio.sleep(0.05)


async def recover(fire: Fire) -> None:
    """Looks, finds that nothing has changed, and goes on."""
    before = await buckets_of(fire.store, JOB)
    code, shown, _ = await command(fire, "recover", JOB, "--json")
    assert "buckets" in shown, shown
    buckets = json.loads(shown)["buckets"]
    assert code == 4 and len(buckets) == len(before)
    assert {(one["state"], one["primary"], *one["missing"], *one["empty"]) for one in buckets} == {
        ("stuck", "ps-1", "ps-3", "ps-2")
    }
    assert await buckets_of(fire.store, JOB) == before
    code, shown, errors = await command(fire, "recover", JOB, "--yes")
    assert code == 0 and shown.endswith("served again\n"), (shown, errors)
    assert {record.primary for record in (await buckets_of(fire.store, JOB)).values()} == {"ps-1"}
    _, shown, _ = await command(fire, "events")
    assert "recovered by an operator: ps-2, ps-3 given up" in shown
    code, shown, _ = await command(fire, "recover", JOB)
    assert code == 0 and shown == "nothing is stuck: every bucket is served or is being taken over\n"


async def test_an_operator_goes_on_with_what_one_store_has() -> None:
    with StoredCluster(COPIES, QUICK_LEASE_S) as cluster:
        fire = Fire(cluster, 2)
        try:
            await fire.open()
            await saved(fire)
            await fire.whole()  # nobody was taken for lost because the machine is crowded
            await fire.progress(5)
            for node in cluster.servers:
                cluster.kill(node)
            shutil.rmtree(cluster.store("ps-2"))
            for node in ("ps-1", "ps-2"):
                await asyncio.to_thread(cluster.start, node)
            await asyncio.to_thread(cluster.wait_serving, "ps-1", "ps-2")
            await recover(fire)
            await fire.progress(5)
            async with fire.quiet():
                lost = await lost_updates(fire)
                assert lost > 0
                assert sum(client.rollbacks.numbers for client in fire.clients) == lost
        finally:
            await fire.close()

"""Whom a run takes for lost, and what it does when one of its servers or workers is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from adamctl.config.records import NodeRecord, encode, node_key
from adamctl.errors import RemoteError, RunFailedError, UnreachableError
from adamctl.roles.coordinator import losses, plan
from adamctl.roles.coordinator.core.membership import Membership
from adamctl.roles.data import server as data_server
from adamctl.roles.ps import server as ps_server
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry
from tests.roles.coordinator.played_run import (
    EXAMPLES,
    heard,
    make_experiment,
    until,
    world,
)


async def test_a_lost_server_fails_the_run_with_its_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path, store="none"))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("ps-0")
        assert "parameter server ps-0" in await worker.work()
        with pytest.raises(RunFailedError, match=r"parameter server ps-0 .* is gone"):
            await w.ended()


async def test_a_server_that_keeps_its_part_on_disk_may_die_and_come_back(tmp_path: Path) -> None:
    options = {"apply_threads": "1", "store": str(tmp_path / "store"), "loss_window_s": 0.1}
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.cluster.stop("ps-0")
        await w.cluster.start("ps", "ps-0", ps_server.run, options)
        await w.start_run(make_experiment(tmp_path, workers=1), job="small")
        worker = await w.worker()
        client = await w.client()
        for life in (1, 2):
            await w.cluster.kill("ps-0")
            await w.cluster.start("ps", "ps-0", ps_server.run, options)
            await until(client, lambda progress, life=life: heard(progress, "ps-0 is back") >= life)
        await worker.work()
        await w.ended()


async def test_a_server_that_does_not_come_back_fails_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SERVER_AGAIN_S", 0.1)
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("ps-0")
        assert "parameter server ps-0" in await worker.work()
        with pytest.raises(RunFailedError, match=r"parameter server ps-0 .* is gone"):
            await w.ended()


async def test_a_server_that_comes_back_without_its_part_fails_the_run(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("ps-0")
        await w.cluster.start("ps", "ps-0", ps_server.run, {"apply_threads": "1"})
        await worker.work()
        with pytest.raises(RemoteError, match="ps-0 was restarted and no longer has"):
            await w.ended()


@pytest.mark.parametrize("servers", [1, 2])
async def test_data_servers_may_die_and_come_back(tmp_path: Path, servers: int) -> None:
    async with world(tmp_path) as w:
        await w.start_servers(data=servers)
        await w.start_run(make_experiment(tmp_path, workers=1), job="small")
        worker = await w.worker()
        client = await w.client()
        for life in (1, 2):  # the second time, it is the one that came back which dies
            for number in range(servers):
                await w.cluster.kill(f"data-{number}")
            for number in range(servers):
                await w.cluster.start("data", f"data-{number}", data_server.run, {"threads": 1})
            await until(client, lambda progress, life=life: heard(progress, "is back") >= life)
        await worker.work()
        await w.ended()


async def test_where_servers_share_the_data_out_one_that_joined_takes_the_place_of_the_last(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, workers=1)
    with np.load(experiment.data.source) as arrays:
        for name, values in arrays.items():
            np.save(tmp_path / f"{name}.npy", values)
    data = msgspec.structs.replace(experiment.data, format="npy", source=str(tmp_path))
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(msgspec.structs.replace(experiment, data=data), job="small")
        worker, client = await w.worker(), await w.client()
        await w.cluster.start("data", "data-9", data_server.run, {"threads": 1})
        await w.cluster.kill("data-0")
        await until(client, lambda progress: heard(progress, "data-9 takes its place") == 1)
        await worker.work()
        await w.ended()


async def test_a_run_without_any_data_server_fails_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "DATA_AGAIN_S", 0.1)
    async with world(tmp_path) as w:
        await w.start_servers(data=2)
        await w.start_run(make_experiment(tmp_path))
        worker = await w.worker()
        await worker.ask()
        await w.cluster.kill("data-0")
        await w.cluster.kill("data-1")
        assert "data server data-" in await worker.work()
        with pytest.raises(RunFailedError, match=r"data server data-[01] is gone, and it was the last one"):
            await w.ended()


async def test_a_killed_worker_does_not_end_the_run(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path, workers=2))
        killed, other = await w.worker(), await w.worker()
        await killed.ask()
        await killed.client.close()
        await other.work()
        await w.ended()
        summary = json.loads((tmp_path / "001" / "summary.json").read_text())
        assert summary["examples"] == 2 * EXAMPLES


# --- what a connection to a server says -------------------------------------------------------------------------------

SERVER = NodeRecord("p", "ps", 5, ("p:1",), "h", 1)


@dataclass
class Peer:
    incarnation: int


@dataclass
class FakeConnection:
    peer: Peer
    closed: bool = False

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeContext:
    """Whom it reaches says one incarnation after the other; with none left it is refused."""

    incarnations: list[int]
    made: list[FakeConnection] = field(default_factory=list)
    none_left: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self, record: NodeRecord, deadline_s: float) -> FakeConnection:
        if not self.incarnations:
            raise UnreachableError("refused")
        self.made.append(FakeConnection(Peer(self.incarnations.pop(0))))
        if not self.incarnations:
            self.none_left.set()
        return self.made[-1]


@pytest.fixture
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "LOOK_EVERY_S", 0.001)


async def causes_of(context: FakeContext) -> list[str]:
    causes: list[str] = []
    async with asyncio.timeout(10):
        await losses.watch_server(cast(Any, context), SERVER, causes.append)
    return causes


@pytest.mark.usefixtures("looking_often")
async def test_one_that_refuses_is_gone() -> None:
    assert await causes_of(FakeContext([])) == ["refused"]


@pytest.mark.usefixtures("looking_often")
async def test_another_process_in_its_place_means_that_it_is_gone() -> None:
    assert await causes_of(FakeContext([6])) == ["it has restarted, and what it held is lost"]


@pytest.mark.usefixtures("looking_often")
async def test_one_that_has_not_heard_yet_that_it_is_a_member_is_asked_again() -> None:
    """It listens before it is registered, and its record is there before it is told so."""
    context = FakeContext([0, 0, 5])
    task = asyncio.ensure_future(causes_of(context))
    async with asyncio.timeout(10):
        await context.none_left.wait()
        await asyncio.sleep(0.01)
    assert not task.done() and [one.closed for one in context.made] == [True, True, False]
    context.made[-1].closed = True
    assert await task == ["refused"]


class AwayStore:
    """Cannot be reached for a while, in which `ps-0` goes."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        self.reads += 1
        record = encode(NodeRecord("ps-0", "ps", 3, (), "h", 1))
        return self.reads, [ConfigEntry(node_key("ps-0"), record, 1)] if self.reads == 1 else []

    async def watch(self, prefix: str, after_revision: int, wait_s: float) -> Changes:
        if self.reads == 1:
            raise UnreachableError("nobody answers")
        return await asyncio.Future()


async def test_members_are_followed_again_after_controllers_were_away() -> None:
    gone = asyncio.Queue[tuple[str, int]]()
    store: Any = AwayStore()
    watching = asyncio.create_task(
        losses.watch_nodes(store, Membership({"ps-0": 3}), lambda *key: gone.put_nowait(key))
    )
    async with asyncio.timeout(60.0):
        assert await gone.get() == ("ps-0", 3)
    assert not watching.done()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

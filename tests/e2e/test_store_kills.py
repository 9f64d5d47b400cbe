"""`kill -9` at random moments under load, `acks = durable`: nothing acknowledged is lost, nothing applied twice (I5).

Every push adds 1 to every parameter, so each value is the number of pushes that it contains.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from pathlib import Path
from random import Random

import numpy as np
import pytest

from adamctl.bench.failover.cluster import RETIRE_AFTER_S
from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, encode, job_key, layout_key
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.configuration import nodes_of, wait_for
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.ps.client.parameter_client import ParameterClient, PendingPush, PushSet
from adamctl.roles.ps.store.recovery import read_log
from adamctl.wire.messages import ConfigChanges
from tests.e2e.conftest import Command, Runner
from tests.e2e.test_by_hand import Cluster
from tests.roles.ps.ps_cluster import make_tensors

CLIENTS = 3
AHEAD = 4
STARVED_S = 600.0
"""A client on a slow machine may find the server killed again before it has reached it, several times over."""
LEFT_ALONE_S = 120.0
JOB = "counted"


class Load:
    """A cluster of one server, and clients that push as fast as it acknowledges."""

    def __init__(self, runner: Runner, seed: int) -> None:
        self.chance = Random(seed)
        self.cluster = Cluster(runner, controller_flags=("--retire-after", f"{RETIRE_AFTER_S:g}"))
        self.folder = runner.folder / "store"
        self.acknowledged = 0
        self.pushed = 0
        self.pushing = True
        self.server = self.start_server()

    def start_server(self) -> Command:
        window_s = self.chance.choice(["0.05", "1", "30"])
        return self.cluster.start(
            "ps", "--name", "ps-0", "--apply-threads", "1", "--store", str(self.folder), "--loss-window-s", window_s
        )

    async def create_job(self, store: ControllerClient) -> ParameterLayout:
        await wait_for(store, "/nodes/", lambda entries: nodes_of(entries, "ps") or None, 60, "the server")
        record = LayoutRecord(make_tensors(((64, 9000), (64,))), 1)  # bodies so long that they are applied as they come
        layout = record.layout()
        job = JobRecord("running", layout.hash, RuleConfig("add"), 1, acks="durable")
        puts = {job_key(JOB): encode(job), layout_key(JOB): encode(record)}
        puts |= {bucket_key(JOB, bucket.index): encode(BucketRecord(1, "ps-0")) for bucket in layout.buckets}
        await store.compare_and_set(ConfigChanges({job_key(JOB): 0}, puts))
        return layout

    def push_of(self, layout: ParameterLayout, flat: np.ndarray) -> PushSet:
        push = PushSet(layout, 1.0)
        for index, tensor in enumerate(layout.tensors):
            push.delta(index, flat[tensor.offset : tensor.offset + tensor.size])
        return push

    async def push(self, client: ParameterClient) -> None:
        """Keeps a few pushes on their way."""
        ones = np.ones(client.layout.flat_size, np.float32)
        under_way: deque[PendingPush] = deque()
        while self.pushing or under_way:
            while self.pushing and len(under_way) < AHEAD:
                under_way.append(client.start_push(self.push_of(client.layout, ones)))
                self.pushed += 1
            outcome = await under_way.popleft().wait(STARVED_S)
            assert not outcome.refused, outcome
            self.acknowledged += 1

    async def values(self, client: ParameterClient) -> list[float]:
        """Returns the one value of each shard."""
        flat = np.zeros(client.layout.flat_size, np.float32)
        await client.pull(flat, deadline_s=LEFT_ALONE_S)
        found = [np.unique(flat[s.offset : s.offset + s.size]) for s in client.layout.shards]
        assert all(len(values) == 1 for values in found), "torn"
        return [float(values[0]) for values in found]

    async def kill(self, reader: ParameterClient) -> None:
        """Kills the server at a random moment, starts it again, and looks."""
        await asyncio.sleep(self.chance.choice([0.0, 0.02, 0.2, 0.8]) * self.chance.random())
        before = self.acknowledged
        self.server.process.send_signal(signal.SIGKILL)
        code, _, stderr = await asyncio.to_thread(self.server.wait, 30)
        assert code == -signal.SIGKILL, stderr
        read_log(self.folder / "log.mdb", keep=False)
        self.server = self.start_server()
        values = await self.values(reader)
        assert min(values) >= before, f"{before} were acknowledged as durable"
        assert max(values) <= self.pushed


async def kills(runner: Runner, count: int, seed: int) -> None:
    load = Load(runner, seed)
    transport = StreamTransport()

    def hello(incarnation: int):
        return lambda: make_hello("worker", f"w-{incarnation}", incarnation, "")

    maker = make_hello("client", "kills")
    store = ControllerClient(transport, [f"tcp://{load.cluster.address}"], lambda: maker)
    clients = [ParameterClient(transport, hello(n), store, JOB, attempt_s=2.0) for n in range(1, CLIENTS + 2)]
    pushing: list[asyncio.Task[None]] = []
    try:
        layout = await load.create_job(store)
        for client in clients:
            await client.attach(deadline_s=60)
        reader, *writers = clients
        flat = np.zeros(layout.flat_size, np.float32)
        await reader.pull(flat)
        await reader.push(load.push_of(layout, -flat))
        pushing = [asyncio.create_task(load.push(client)) for client in writers]
        for _ in range(count):
            await load.kill(reader)
            for task in filter(asyncio.Task.done, pushing):
                task.result()  # raises what it failed with
        load.pushing = False
        async with asyncio.timeout(LEFT_ALONE_S):
            await asyncio.gather(*pushing)
        assert set(await load.values(reader)) == {load.pushed}, "each push once"
        assert load.acknowledged == load.pushed > count
    finally:
        for task in pushing:
            task.cancel()
        await asyncio.gather(*pushing, return_exceptions=True)
        for client in clients:
            await client.close()
        await store.close()


async def test_killed_a_few_times_under_load(adamctl: Runner) -> None:
    await kills(adamctl, 4, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
async def test_killed_200_times_under_load(adamctl: Runner, seed: int) -> None:
    """Fifty times for each seed."""
    await kills(adamctl, 50, seed)


def test_a_server_whose_store_was_damaged_refuses_to_start_and_says_how_to_go_on(
    adamctl: Runner, tmp_path: Path
) -> None:
    cluster = Cluster(adamctl)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "log.mdb").write_bytes(bytes(100_000))
    code, _, stderr = cluster.start("ps", "--name", "ps-0", "--store", str(tmp_path / "store")).wait(60)
    assert code == 5, stderr
    assert "log.mdb is damaged" in stderr and "last checkpoint" in stderr

"""Many clients at once against a real server: memory stays bounded, everyone is served, whoever never reads is cut."""

from __future__ import annotations

import asyncio
import itertools
import socket
from contextlib import suppress

import numpy as np
import psutil
import pytest

from adamctl.bench.ps.cluster import PsCluster, connect_store
from adamctl.bench.ps.job import weights_record
from adamctl.bench.ps.stress import run_ps_stress
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.roles.ps.client.routing import read_node
from adamctl.wire.codec import encode_request
from adamctl.wire.messages import AttachRequest, Message, PullRequest, StatusRequest

pytestmark = pytest.mark.slow
MODEL_BYTES = 16 << 20


def test_64_connections_from_4_processes_are_served_alike_within_the_quota() -> None:
    """Pushes of the whole model by each, two at a time, for some seconds; what was pushed is checked afterwards."""
    report = run_ps_stress(seconds=10.0, model_bytes=4 << 20, block_bytes=1 << 18, connections=64, processes=4)
    (row,) = report["results"]
    assert row["errors"] == []
    assert row["within_quota"], row
    assert row["pushes_per_connection_max"] <= 2 * row["pushes_per_connection_min"], row


class NeverReads:
    """A connection that attaches, asks for the whole model again and again, and takes no answer."""

    def __init__(self, host: str, port: int, number: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._ids = itertools.count(1)
        self._unsent = b""
        self.cut = False
        self.send(make_hello("worker", f"deaf-{number}", 10_000 + number))

    def send(self, message: Message) -> None:
        self._unsent += encode_request(message, next(self._ids))
        self.flush()

    def flush(self) -> None:
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            try:
                while self._unsent:
                    self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                self.cut, self._unsent = True, b""

    def close(self) -> None:
        self._socket.close()


async def attack(controller: str, server: psutil.Process) -> int:
    """Honest clients push and pull beside some that never read; returns the server's peak of resident memory."""
    store = connect_store(controller)
    record = await read_node(store, "ps-1")
    where = next(text for text in record.addresses if text.startswith("tcp://"))
    host, _, port = where.removeprefix("tcp://").rpartition(":")
    transport = StreamTransport(kind="tcp")
    clients = [
        ParameterClient(transport, lambda n=n: make_hello("worker", f"w-{n}", n), store, "job")  # type: ignore[misc]
        for n in range(1, 9)
    ]
    for client in clients:
        await client.attach(deadline_s=60)
    layout = clients[0].layout
    deaf = [NeverReads(host, int(port), number) for number in range(24)]
    for one in deaf:
        one.send(AttachRequest("job", layout.hash))
    pull = PullRequest("job", clients[0].routing.epochs_of(range(len(layout.shards))), tuple(range(len(layout.shards))))
    peak_bytes, done = 0, asyncio.Event()

    async def annoy() -> None:
        nonlocal peak_bytes
        while not done.is_set():
            for number, one in enumerate(deaf):
                one.send(StatusRequest() if number % 4 == 0 else pull)
            peak_bytes = max(peak_bytes, server.memory_info().rss)
            await asyncio.sleep(0.02)

    async def work(client: ParameterClient) -> None:
        push, into = PushSet(layout, 1.0), np.zeros(layout.flat_size, np.float32)
        for index, tensor in enumerate(layout.tensors):
            push.delta(index, np.ones(tensor.size, np.float32))
        for _ in range(25):
            await client.push(push, deadline_s=120)
            await client.pull(into, deadline_s=120)

    annoying = asyncio.create_task(annoy())
    try:
        await asyncio.gather(*(work(client) for client in clients))
        into = np.zeros(layout.flat_size, np.float32)
        pulled = await clients[0].pull(into, deadline_s=60)
        assert (pulled.pushes == 25 * len(clients)).all()
    finally:
        done.set()
        await annoying
        for one in deaf:
            one.close()
        for client in clients:
            await client.close()
        await store.close()
    return peak_bytes


def test_clients_that_never_read_take_no_more_than_their_quota_and_stop_nobody() -> None:
    with PsCluster(1, 1) as cluster:
        cluster.create_job("job", weights_record(MODEL_BYTES, 1 << 20, 1))
        server = cluster.processes()[0]
        before_bytes = server.memory_info().rss
        peak_bytes = run(attack(cluster.controller, server))
        assert server.is_running()
    limits = ServerLimits()
    assert peak_bytes <= before_bytes + 2 * MODEL_BYTES + limits.memory_bytes_max + limits.reply_memory_bytes_max

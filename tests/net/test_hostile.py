"""I14: a hostile peer cannot exceed its memory or connection quota, and honest ones do not notice it."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import UnreachableError
from adamctl.net.connection import StreamConnection
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.wire.messages import BenchBlockRequest, StatusRequest
from tests.net.hostile import MEMORY_BYTES_MAX, TOKEN, attack_many, victim


async def honest_work(connection: StreamConnection, stop: asyncio.Event) -> int:
    """Requests with bodies, one after another, until told to stop; each must be answered."""
    done = 0
    while not stop.is_set() or not done:
        await connection.request(BenchBlockRequest(done), [bytes(200_000)], deadline_s=60)
        done += 1
        await asyncio.sleep(0.01)
    return done


async def connect_honestly(transport: StreamTransport, address: str) -> StreamConnection:
    """A hostile peer that knows the token may hold every place for a while; who means well asks again."""
    for _ in range(600):
        try:
            return await transport.connect(address, make_hello("worker", "honest", token=TOKEN), deadline_s=30)
        except UnreachableError:
            await asyncio.sleep(0.05)
    raise AssertionError("no place was ever free")


async def watch(address: str, attackers: list[Any]) -> tuple[int, dict[str, int]]:
    transport = StreamTransport()
    clients = [await connect_honestly(transport, address) for _ in range(3)]
    stop = asyncio.Event()
    work = [asyncio.ensure_future(honest_work(client, stop)) for client in clients]
    for attacker in attackers:
        attacker.start()
    most = 0
    while any(attacker.is_alive() for attacker in attackers):
        await asyncio.sleep(0.05)
        reply = await clients[0].request(StatusRequest(), deadline_s=60)
        most = max(most, reply.message.status["rss_bytes"])  # type: ignore[attr-defined]
    newcomer = await connect_honestly(transport, address)
    stop.set()
    done = sum(await asyncio.gather(*work))
    reply = await newcomer.request(StatusRequest(), deadline_s=60)
    status = dict(reply.message.status)  # type: ignore[attr-defined]
    for client in (*clients, newcomer):
        await client.close()
    return done, {**status, "most": most}


def siege(folder: Path, connections: int, attackers: int) -> None:
    """Hostile connections from several processes against one server, with honest clients alongside."""
    with victim(folder) as (address, _):
        path = address.removeprefix("unix://")
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=attack_many, args=(path, connections // attackers, seed))
            for seed in range(attackers)
        ]
        done, status = run(watch(address, processes))
        assert all(process.exitcode == 0 for process in processes)
        assert done >= 3
        assert status["peak"] <= MEMORY_BYTES_MAX
        # The quota of bodies, that of answers nobody takes, and Python itself with its kept free memory.
        assert status["most"] < MEMORY_BYTES_MAX + (64 << 20) + (128 << 20), status


def test_some_hostile_connections(tmp_path: Path) -> None:
    siege(tmp_path, 150, 1)


@pytest.mark.slow
def test_twenty_thousand_hostile_connections(tmp_path: Path) -> None:
    siege(tmp_path, 20_000, 2)

"""Peers that mean harm, over plain sockets, and a server in a process of its own to try them on."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.codec import encode_request
from adamctl.wire.messages import BenchBlockRequest, Empty, PullReply, PullRequest, StatusReply, StatusRequest
from tests.wire.frames import raw_frame

TOKEN = "the cluster's own"
MEMORY_BYTES_MAX = 64 << 20
Pipe = multiprocessing.connection.Connection


def rss_bytes() -> int:
    """Resident memory of this process, now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def serve_until_told(path: str, pipe: Pipe) -> None:
    """A server whose STATUS tells its own memory; ends when the pipe does."""

    async def main() -> None:
        def handle(request: Request) -> None:
            if isinstance(request.message, StatusRequest):
                statistics = server.pool.statistics()
                request.reply(StatusReply({"rss_bytes": rss_bytes(), "peak": statistics.peak_outstanding_bytes}))
            elif isinstance(request.message, PullRequest):
                request.reply(PullReply(()), [bytes(1 << 20)])
            else:
                request.reply(Empty())

        limits = ServerLimits(
            connections_max=64, handshakes_max=64, hello_timeout_s=1.0, credit_bytes=8 << 20,
            memory_bytes_max=MEMORY_BYTES_MAX, reply_bytes_max=8 << 20, reply_memory_bytes_max=64 << 20,
            frame_timeout_s=2.0, write_stall_timeout_s=2.0,
        )  # fmt: skip
        server = await StreamTransport().serve(
            [f"unix://{path}"], make_hello("ps", "victim", token=TOKEN), handle, limits=limits
        )
        pipe.send(server.addresses[0])
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        loop.add_reader(pipe.fileno(), done.set)
        await done.wait()
        loop.remove_reader(pipe.fileno())
        await server.close()

    import logging

    logging.disable(logging.CRITICAL)
    run(main())


@contextmanager
def victim(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yields the address of a running server and its process; afterwards it must have ended by itself, cleanly."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_until_told, args=(str(folder / "victim.sock"), theirs))
    process.start()
    try:
        assert ours.poll(30), "the server did not start"
        yield ours.recv(), process
        assert process.is_alive(), "the server has died"
        ours.send("end")
        process.join(20)
        assert process.exitcode == 0
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()


HELLO = encode_request(make_hello("worker", "evil", token=TOKEN), 1)
WRONG_HELLO = encode_request(make_hello("worker", "evil", token="guess"), 1)


def greet(peer: socket.socket) -> None:
    peer.sendall(HELLO)
    peer.recv(1000)


def attack(path: str, random: Random) -> list[socket.socket]:
    """Makes one hostile connection; returns it if it is to be kept open."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(0.05)
    kept: list[socket.socket] = []
    with suppress(OSError):
        peer.connect(path)
        kind = random.randrange(9)
        if kind == 0:
            peer.sendall(random.randbytes(random.randrange(1, 300)))
        elif kind == 1:
            peer.sendall(HELLO[: random.randrange(len(HELLO))])
            kept.append(peer)
        elif kind == 2:
            greet(peer)
            peer.sendall(raw_frame(body_bytes=random.choice([(32 << 20) + 1, 0xFFFFFFFF])))
        elif kind == 3:  # allowed lengths, and then nothing
            greet(peer)
            peer.sendall(raw_frame(body_bytes=32 << 20) + b"x")
            kept.append(peer)
        elif kind == 4:
            peer.sendall(WRONG_HELLO)
        elif kind == 5:  # a flood of requests whose answers nobody takes
            greet(peer)
            pull = encode_request(PullRequest("j", {}, (1,)), 2)
            for _ in range(20):
                peer.sendall(pull * 50)
            kept.append(peer)
        elif kind == 6:  # bodies beyond its credit
            greet(peer)
            block = encode_request(BenchBlockRequest(1), 2, body_bytes=1 << 20) + bytes(1 << 20)
            for _ in range(4):
                peer.sendall(block)
        elif kind == 7:
            peer.sendall(raw_frame(opcode=33, body_bytes=32 << 20))
        else:  # says nothing at all
            kept.append(peer)
    if not kept:
        peer.close()
    return kept


def attack_many(path: str, count: int, seed: int, kept_max: int = 100) -> None:
    """Makes `count` hostile connections, `kept_max` of them open at once."""
    random = Random(seed)
    kept: list[socket.socket] = []
    for _ in range(count):
        kept += attack(path, random)
        while len(kept) > kept_max:
            kept.pop(random.randrange(len(kept))).close()
    for peer in kept:
        peer.close()

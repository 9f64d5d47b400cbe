"""Over real sockets: a stranger at one address crowds nobody of another out before HELLO, and does not fill the log."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys

import pytest

from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.loop import run
from adamctl.net.peer_user import peer_source
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.codec import encode_request
from adamctl.wire.messages import Empty

LIMITS = ServerLimits(handshakes_max=8, hello_timeout_s=30.0, log_lines_per_address_max=3, log_window_s=0.3)
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux all of 127/8 is this machine")


def handle(request: Request) -> None:
    request.reply(Empty())


async def opened(address: str, source: str) -> socket.socket:
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    return sock


async def answer(sock: socket.socket) -> bytes:
    """What the server says next; empty: it has cut the connection."""
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 4096), 10)
    except ConnectionError:
        return b""


@needs_linux
def test_silent_connections_of_one_address_do_not_crowd_out_another() -> None:
    async def main() -> None:
        transport = StreamTransport()
        server = await transport.serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0"), handle, limits=LIMITS)
        slow = await opened(server.addresses[0], "127.0.0.1")
        hostile = [await opened(server.addresses[0], "127.0.0.2") for _ in range(60)]
        assert await answer(hostile[0]) == b"", "its own oldest went"
        head = encode_request(make_hello("worker", "w-0"), 1)
        await asyncio.get_running_loop().sock_sendall(slow, head)
        assert await answer(slow), "who was there first is let in"
        assert server.connection_count == 1
        many = [
            await transport.connect(server.addresses[0], make_hello("worker", f"w-{n}"), deadline_s=10)
            for n in range(3 * LIMITS.handshakes_max)
        ]
        assert server.connection_count == 1 + len(many), "HELLO said, an address may have any number"
        for connection in many:
            await connection.close()
        for sock in (slow, *hostile):
            sock.close()
        await server.close()

    run(main())


@needs_linux
def test_lines_about_one_address_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(address: str, source: str) -> None:
        sock = await opened(address, source)
        await asyncio.get_running_loop().sock_sendall(sock, b"GET / HTTP/1.1\r\n\r\n" * 8)
        while await answer(sock):
            pass
        sock.close()

    async def main() -> None:
        server = await StreamTransport().serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0"), handle, limits=LIMITS)
        for _ in range(40):
            await broken(server.addresses[0], "127.0.0.2")
        await broken(server.addresses[0], "127.0.0.3")
        await server.close()

    with caplog.at_level(logging.WARNING, logger="adamctl"):
        run(main())
    lines = [record.getMessage() for record in caplog.records]
    broke = [line for line in lines if "broke the protocol" in line and "127.0.0.2" in line]
    sums = [line for line in lines if line.startswith("and ") and line.endswith("more lines about 127.0.0.2 in 0.3 s")]
    assert broke and len(broke) < 40 and sums, lines
    assert len(broke) + sum(int(line.split()[1]) for line in sums) == 40, "each is written or counted"
    assert any("127.0.0.3" in line for line in lines), "another address is not in its way"


def test_a_unix_sockets_source_is_its_user() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_source(ours) == f"user {os.geteuid()}"
    assert peer_source(None) == "unknown"

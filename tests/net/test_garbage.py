"""Nothing of a request waits for the garbage collector, which runs seldom: bodies may be large, requests are many."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from adamctl.errors import AdamctlError, RemoteError, UnreachableError
from adamctl.net.connection import ClientProtocol
from adamctl.net.handshake import make_hello
from adamctl.net.pending import Pending
from adamctl.net.server import ServerProtocol
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.layer import TlsLayer
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode
from adamctl.wire.decoder import FrameDecoder
from adamctl.wire.messages import BenchBlockRequest, Empty, StatusRequest
from tests.garbage import collected
from tests.net.tls.certificates import Authority
from tests.ports import free_ports


def handle(request: Request) -> None:
    if isinstance(request.message, StatusRequest):
        request.fail(ErrorCode.NOT_READY, "later")
    elif request.message.number >= 0:  # type: ignore[attr-defined]
        request.reply(Empty())


async def test_requests_leave_no_circles() -> None:
    transport = StreamTransport()
    server = await transport.serve(["tcp://127.0.0.1:0"], make_hello("ps", "p"), handle)
    try:
        connection = await transport.connect(server.addresses[0], make_hello("bench", "b"), deadline_s=10)
        with collected() as found:
            for number in range(5):
                await connection.send_one_way(BenchBlockRequest(number), (bytes(100),), deadline_s=10)
                await connection.request(BenchBlockRequest(number), (bytes(100),), deadline_s=10)
                with suppress(RemoteError):
                    await connection.request(StatusRequest(), deadline_s=10)
                with suppress(AdamctlError):
                    await connection.request(BenchBlockRequest(-1), (bytes(100),), deadline_s=0.01)
        assert not [one for one in found if isinstance(one, (Pending, RemoteError, AdamctlError))]
        with collected() as found:
            waiting = asyncio.create_task(connection.request(BenchBlockRequest(-1), (bytes(100),), deadline_s=10))
            await asyncio.sleep(0.01)
            await connection.close()
            with suppress(UnreachableError):
                await waiting
            del waiting
        assert not [one for one in found if isinstance(one, Pending)]
    finally:
        await server.close()


async def test_a_connection_that_fails_leaves_no_circle() -> None:
    """A server that looks for a lost one tries many times a second."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    transport = StreamTransport()
    try:
        with collected() as found:
            for _ in range(3):
                with suppress(UnreachableError):
                    await transport.connect(address, make_hello("bench", "b"), deadline_s=10)
            await asyncio.sleep(0.05)
        assert not [one for one in found if isinstance(one, (ClientProtocol, FrameDecoder))]
    finally:
        server.close()


CIRCLES = (ClientProtocol, ServerProtocol, FrameDecoder, TlsLayer)


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
async def test_a_connection_that_has_ended_leaves_no_circle(tmp_path: Path, kind: str) -> None:
    """A process of a cluster in trouble makes and loses connections all the time, each with 16 KiB at each end."""
    transport = {"ps": StreamTransport(), "worker": StreamTransport()}
    if kind == "tls":
        authority = Authority(tmp_path)
        transport = {role: StreamTransport(tls=str(authority.write(role, role))) for role in transport}
    address = f"unix://{tmp_path / 's'}" if kind == "unix" else "tcp://127.0.0.1:0"
    gone: list[int] = []
    server = await transport["ps"].serve([address], make_hello("ps", "ps"), handle, on_disconnect=gone.append)
    try:
        with collected() as found:
            for _ in range(3):
                hello = make_hello("worker", "worker")
                connection = await transport["worker"].connect(server.addresses[0], hello, deadline_s=10)
                await connection.request(BenchBlockRequest(1), (bytes(100),), deadline_s=10)
                await connection.close()
                connection = await transport["worker"].connect(server.addresses[0], hello, deadline_s=10)
                for protocol in list(server.connections):
                    protocol.end(UnreachableError("the test ends it"))
                await connection.wait_lost()
            while len(gone) < 6:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            del connection, protocol
            await asyncio.sleep(0.05)
        assert not [one for one in found if isinstance(one, CIRCLES)]
    finally:
        await server.close()


async def test_a_connection_that_is_refused_leaves_no_circle() -> None:
    transport = StreamTransport()
    (port,) = free_ports(1)
    with collected() as found:
        for _ in range(3):
            with suppress(UnreachableError):
                await transport.connect(f"tcp://127.0.0.1:{port}", make_hello("bench", "b"), deadline_s=10)
    assert not [one for one in found if isinstance(one, CIRCLES)]

"""Nothing of a request waits for the garbage collector, which runs seldom: bodies may be large, requests are many."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from adamctl.errors import AdamctlError, RemoteError, UnreachableError
from adamctl.net.connection import ClientProtocol
from adamctl.net.handshake import make_hello
from adamctl.net.pending import Pending
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode
from adamctl.wire.decoder import FrameDecoder
from adamctl.wire.messages import BenchBlockRequest, Empty, StatusRequest


@contextmanager
def collected() -> Iterator[list[object]]:
    """Yields what the collector finds of the block, filled at its end."""
    found: list[object] = []
    gc.collect()
    before = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(before)
        gc.garbage.clear()


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

"""Nothing of a request waits for the garbage collector, which runs seldom: bodies may be large, requests are many."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from adamctl.errors import AdamctlError, RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.pending import Pending
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode
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

"""The tiny HTTP server: what it answers, and what hostile clients can do to it: nothing for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from adamctl.errors import ConfigurationError
from adamctl.net.http_server import HttpAnswer, HttpLimits, HttpRequest, HttpServer, host_and_port, text

LARGE_BYTES = 30 << 20
"""More than the kernel's buffers of both ends take."""
QUICK = HttpLimits(
    connections_max=4, request_bytes_max=1024, request_timeout_s=0.2, handler_timeout_s=0.2, answer_timeout_s=0.3
)


async def hello(request: HttpRequest) -> HttpAnswer:
    return text(200, f"accepts {request.accept}")


async def never(request: HttpRequest) -> HttpAnswer:
    await asyncio.Event().wait()
    raise AssertionError


async def broken(request: HttpRequest) -> HttpAnswer:
    raise ValueError("a secret")


async def large(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(200, bytes(LARGE_BYTES))


@asynccontextmanager
async def served(limits: HttpLimits = QUICK) -> AsyncIterator[HttpServer]:
    pages = {"/hello": hello, "/never": never, "/broken": broken, "/large": large}
    server = await HttpServer.listen("127.0.0.1", 0, pages, limits)
    try:
        yield server
    finally:
        await server.close()


async def said(server: HttpServer, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        async with asyncio.timeout(20):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
    finally:
        writer.close()


async def test_a_page_is_answered_and_the_connection_closed() -> None:
    async with served() as server:
        answer = await said(server, b"GET /hello?x=1 HTTP/1.1\r\nHost: x\r\n", b"Accept: a/b\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"\r\nConnection: close" in head
        assert body == b"accepts a/b\n" and b"\r\nContent-Length: 12\r\n" in head
        only_head = await said(server, b"HEAD /hello HTTP/1.1\r\n\r\n")
        assert only_head.endswith(b"\r\n\r\n") and b"Content-Length: 9\r\n" in only_head
    assert server.connections == 0


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", 404),
        (b"POST /hello HTTP/1.1\r\n\r\n", 405),
        (b"GET /hello\r\n\r\n", 400),
        (b"\xff\x00\xfe\r\n\r\n", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
        (b"GET /never HTTP/1.1\r\n\r\n", 503),
        (b"GET /hello HTTP/1.1\r\nA: " + b"a" * 4000 + b"\r\n\r\n", 431),
        (b"GET /hello HTTP/1.1\r\n", 408),
        (b"", 408),
    ],
)
async def test_what_is_no_good_request_gets_its_status(request_bytes: bytes, status: int) -> None:
    async with served() as server:
        answer = await said(server, request_bytes)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:100]
        assert b"a secret" not in answer


async def test_who_sends_byte_by_byte_is_not_waited_for() -> None:
    """The time is that of the whole request, not that between two bytes."""
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answered = asyncio.create_task(reader.read())
        async with asyncio.timeout(20):
            while not answered.done():
                writer.write(b"G")
                await asyncio.sleep(0.02)
        assert (await answered).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_many_who_only_sit_there_keep_nobody_out() -> None:
    async with served(HttpLimits(connections_max=4, request_timeout_s=60.0)) as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        assert (await said(server, b"GET /hello HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert server.connections <= 4
        for _, writer in idle:
            writer.close()


async def test_who_does_not_take_the_answer_is_cut() -> None:
    async with served() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(20):
            while not server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        writer.transport.abort()
        assert len(await said(server, b"GET /large HTTP/1.1\r\n\r\n")) > LARGE_BYTES, "others are served as before"


async def test_a_taken_address_is_an_error_of_configuration() -> None:
    async with served() as server:
        with pytest.raises(
            ConfigurationError, match=f"cannot listen at 127.0.0.1:{server.port}: port {server.port} is taken by"
        ):
            await HttpServer.listen("127.0.0.1", server.port, {})


def test_an_address_is_a_host_and_a_port() -> None:
    assert host_and_port("--health", "0.0.0.0:80") == ("0.0.0.0", 80)
    assert host_and_port("--health", "[::1]:80") == ("::1", 80)
    assert host_and_port("--health", "8080") == ("127.0.0.1", 8080)
    for wrong in ("", "host", "host:", "host:x", "unix:///tmp/x", "host:99999"):
        with pytest.raises(ConfigurationError, match=r"--health: expected HOST:PORT"):
            host_and_port("--health", wrong)

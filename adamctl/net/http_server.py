"""A tiny HTTP/1.1 server for health and metrics: GET and HEAD of a few paths, one request a connection, all bounded.

Whoever connects may be hostile: slow, long, or many. A request has to come within `request_timeout_s` and
`request_bytes_max`, an answer has to be taken within `answer_timeout_s`, and one connection more than
`connections_max` cuts the oldest one, so that those who only sit there do not keep a probe out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from adamctl.errors import ConfigurationError
from adamctl.net.address import parse_address
from adamctl.net.sockets import bind_reason

_LOG = logging.getLogger(__name__)
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True)
class HttpLimits:
    """Bounds of one server."""

    connections_max: int = 32
    request_bytes_max: int = 8192
    request_timeout_s: float = 5.0
    handler_timeout_s: float = 10.0
    answer_timeout_s: float = 10.0


@dataclass(frozen=True)
class HttpRequest:
    """`path` without the query; `accept` as the client sent it, or ""."""

    method: str
    path: str
    accept: str = ""


@dataclass(frozen=True)
class HttpAnswer:
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Answer = Callable[[HttpRequest], Awaitable[HttpAnswer]]


def text(status: int, said: str) -> HttpAnswer:
    """Returns an answer of one line."""
    return HttpAnswer(status, f"{said}\n".encode())


class HttpServer:
    """Serves until it is closed; made by `HttpServer.listen`, on the running loop.

    Attributes:
        port: that it listens on.
        connections: how many are open.
    """

    def __init__(self, pages: Mapping[str, Answer], limits: HttpLimits) -> None:
        self.port = 0
        self._pages, self._limits = pages, limits
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first

    @classmethod
    async def listen(
        cls, host: str, port: int, pages: Mapping[str, Answer], limits: HttpLimits | None = None
    ) -> HttpServer:
        """Listens at a host and a port, 0 for any free one; `pages` by path.

        Raises:
            ConfigurationError: the address is taken or not one of this machine.
        """
        server = cls(pages, limits or HttpLimits())
        bytes_max = server._limits.request_bytes_max
        try:
            server._server = await asyncio.start_server(server._accept, host, port, limit=bytes_max)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {host}:{port}: {bind_reason(host, port, error)}") from error
        server.port = server._server.sockets[0].getsockname()[1]
        return server

    @property
    def connections(self) -> int:
        return len(self._open)

    async def close(self) -> None:
        """Stops listening and cuts every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    # --- one connection ---------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        while len(self._open) >= self._limits.connections_max:
            oldest = next(iter(self._open))
            self._open.pop(oldest).transport.abort()
            oldest.cancel()
        self._open[task] = writer
        try:
            with suppress(OSError, EOFError, TimeoutError):
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._open.pop(task, None)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, refused = await self._request(reader)
        answer = refused if request is None else await self._answer(request)
        assert answer is not None
        with_body = request is None or request.method != "HEAD"
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, '')}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(head.encode("latin-1") + (answer.body if with_body else b""))
        try:
            async with asyncio.timeout(self._limits.answer_timeout_s):
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[HttpRequest | None, HttpAnswer | None]:
        """Returns the request, or why it is refused."""
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                head = await reader.readuntil(_END)
        except TimeoutError:
            return None, text(408, "the request took too long")
        except asyncio.LimitOverrunError:
            return None, text(431, f"expected a request of at most {self._limits.request_bytes_max} bytes")
        first, *lines = head[: -len(_END)].decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
            return None, text(400, "expected GET /PATH HTTP/1.1")
        if words[0] not in ("GET", "HEAD"):
            return None, text(405, "expected GET")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return HttpRequest(words[0], words[1].partition("?")[0], headers.get("accept", "")), None

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        page = self._pages.get(request.path)
        if page is None:
            return text(404, f"expected one of {' '.join(self._pages)}")
        try:
            async with asyncio.timeout(self._limits.handler_timeout_s):
                return await page(request)
        except TimeoutError:
            return text(503, "no answer in time")
        except Exception:
            _LOG.exception("a page of the HTTP server failed")
            return text(500, "the page failed; see the log")


def host_and_port(flag: str, given: str) -> tuple[str, int]:
    """Returns the parts of HOST:PORT, or of a PORT alone, which means this machine's loopback.

    Raises:
        ConfigurationError: it is neither; the message names the flag.
    """
    address = given if ":" in given else f"127.0.0.1:{given}"
    try:
        parsed = parse_address(address)
    except ConfigurationError as error:
        raise ConfigurationError(f"{flag}: expected HOST:PORT; found {given!a}") from error
    if parsed.scheme != "tcp":
        raise ConfigurationError(f"{flag}: expected HOST:PORT; found {given!a}")
    return parsed.host, parsed.port

"""Where the agents of a run dial in: requests for orders wait here until there are any, reports go to the table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from adamctl.errors import ProtocolError, RemoteError
from adamctl.launch.hosts.table import HostTable
from adamctl.net.limits import ServerLimits
from adamctl.net.transport import Request, Server, Transport
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    OPCODE_OF_REQUEST,
    Empty,
    Hello,
    HostJoinRequest,
    HostOrdersReply,
    HostOrdersRequest,
    HostReportRequest,
    HostTailRequest,
    Report,
    StatusReply,
    StatusRequest,
)
from adamctl.wire.permissions import refusal
from adamctl.wire.unreadable import UNREADABLE

WAIT_S_MAX = 10.0
ORDER_BYTES_MAX = 1 << 20
LIMITS = ServerLimits(connections_max=16_384, credit_bytes=4 << 20, memory_bytes_max=256 << 20)
"""Many agents, each of which says little."""
_REPORTS = msgspec.msgpack.Decoder(list[Report])


@dataclass
class _Waiting:
    """A request for orders without an answer yet."""

    request: Request
    connection: int
    timer: asyncio.TimerHandle


class AgentServer:
    """Serves the agents of one run. Used by one event loop.

    `on_news` is called whenever the table may have events. `on_tail` answers an operator's request for logs.
    """

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        table: HostTable,
        on_news: Callable[[], None],
        on_tail: Callable[[Request, HostTailRequest], None],
    ) -> None:
        """`hello`: the front's identity and token."""
        self._transport, self._hello, self._table = transport, hello, table
        self._on_news, self._on_tail = on_news, on_tail
        self._waiting: dict[str, _Waiting] = {}
        self._server: Server | None = None
        self._loop = asyncio.get_running_loop()

    async def listen(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Listens; returns the actual addresses.

        Raises:
            ConfigurationError: an address is malformed or taken.
        """
        self._server = await self._transport.serve(
            addresses, self._hello, self._handle, on_disconnect=self._disconnected, limits=LIMITS
        )
        return self._server.addresses

    def wake(self, host: str) -> None:
        """Answers a host's request for orders, if one waits: there are orders."""
        waiting = self._waiting.pop(host, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._answer(waiting)

    async def close(self) -> None:
        """Stops listening and closes every connection."""
        for waiting in self._waiting.values():
            waiting.timer.cancel()
        self._waiting.clear()
        if self._server is not None:
            await self._server.close()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _handle(self, request: Request) -> None:
        message, connection, now_s = request.message, request.connection_id, self._loop.time()
        refused = refusal(request.peer, OPCODE_OF_REQUEST[type(message)], message)
        if refused:
            raise RemoteError(ErrorCode.NOT_ALLOWED, f"{refused} to the front of a run")
        match message:
            case HostJoinRequest():
                request.reply(self._table.join(message, connection, now_s))
            case HostOrdersRequest():
                self._park(request, message, connection, now_s)
            case HostReportRequest():
                self._table.report(message, _decoded(request), connection, now_s)
                request.reply(Empty())
            case HostTailRequest():
                self._on_tail(request, message)
            case StatusRequest():
                living = [host.name for host in self._table.living()]
                own = {"role": "front", "node": self._hello.node, "incarnation": 0, "hosts": living}
                request.reply(StatusReply(own))
            case _:
                raise RemoteError(ErrorCode.UNKNOWN_OPCODE, f"the front of a run takes no {type(message).__name__}")
        self._on_news()

    def _park(self, request: Request, message: HostOrdersRequest, connection: int, now_s: float) -> None:
        orders = self._table.poll(message.node, message.process, message.after, connection, now_s)
        self._drop(message.node)
        if orders or message.wait_s <= 0:
            _send(request, orders)
            return
        timer = self._loop.call_later(min(message.wait_s, WAIT_S_MAX), self.wake, message.node)
        self._waiting[message.node] = _Waiting(request, connection, timer)

    def _drop(self, host: str) -> None:
        """Ends the wait of an earlier request of this host: its agent no longer waits for it."""
        waiting = self._waiting.pop(host, None)
        if waiting is not None:
            waiting.timer.cancel()
            _send(waiting.request, ())

    def _answer(self, waiting: _Waiting) -> None:
        message = waiting.request.message
        assert isinstance(message, HostOrdersRequest)
        _send(waiting.request, self._table.pending(message.node, message.process))

    def _disconnected(self, connection: int) -> None:
        for host, waiting in list(self._waiting.items()):
            if waiting.connection == connection:
                waiting.timer.cancel()
                del self._waiting[host]
        self._table.disconnected(connection)
        self._on_news()


def _send(request: Request, orders: Sequence[object]) -> None:
    """Answers with as many of the orders as fit; the rest comes with the next answer."""
    body = msgspec.msgpack.encode(orders)
    while len(body) > ORDER_BYTES_MAX and len(orders) > 1:
        orders = orders[: len(orders) // 2]
        body = msgspec.msgpack.encode(orders)
    request.reply(HostOrdersReply(), (body,) if orders else ())


def _decoded(request: Request) -> list[Report]:
    try:
        reports: list[Report] = _REPORTS.decode(request.body)
    except UNREADABLE as error:
        raise ProtocolError(f"expected a list of reports from {request.peer_name}: {error}") from error
    return reports

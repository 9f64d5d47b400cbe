"""An agent's connection to the front of its run: dialled, joined, and kept up until the agent ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from adamctl.errors import (
    AdamctlError,
    ConfigurationError,
    HandshakeError,
    ProtocolError,
    RemoteError,
    UnreachableError,
)
from adamctl.net.transport import Connection, Transport
from adamctl.roles.host.core.host_core import HostCore
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Hello,
    HostJoinReply,
    HostJoinRequest,
    HostOrdersReply,
    HostOrdersRequest,
    HostReportRequest,
    Order,
    Report,
)
from adamctl.wire.unreadable import UNREADABLE

ORDERS_WAIT_S = 2.0
"""How long a request for orders waits at the front; also how often the front hears from an agent that has no news."""
ANSWER_S = 5.0
"""Seconds beyond that in which a healthy front answers."""
DIAL_S = 5.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 1.0
FLUSH_POLL_S = 0.02
REPORT_BYTES_MAX = 512 << 10
REPORTS_MAX = 256
_ORDERS = msgspec.msgpack.Decoder(list[Order])


class FrontLink:
    """Carries orders to the core and reports to the front. Used by one event loop.

    `on_orders` is called with each batch of orders, `on_joined` with the front's answer, whenever it takes us in.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        hello: Hello,
        core: HostCore,
        join: Callable[[str], HostJoinRequest],
        on_joined: Callable[[HostJoinReply], None],
        on_orders: Callable[[Sequence[Order]], None],
        log: logging.Logger,
    ) -> None:
        """`join` makes the request, for the run that we work for, "" for none."""
        self._transport, self._address, self._hello, self._core = transport, address, hello, core
        self._join, self._on_joined, self._on_orders, self._log = join, on_joined, on_orders, log
        self._news = asyncio.Event()
        self._process = 0

    def tell(self) -> None:
        """There may be reports to send."""
        self._news.set()

    async def flush(self, wait_s: float) -> None:
        """Waits until the front has confirmed all reports, at most so long."""
        until_s = asyncio.get_running_loop().time() + wait_s
        while self._core.unconfirmed()[1] and asyncio.get_running_loop().time() < until_s:
            self._news.set()
            await asyncio.sleep(FLUSH_POLL_S)

    async def keep_up(self, wait_s: float) -> None:
        """Dials and redials until cancelled.

        Raises:
            ConfigurationError: the front does not want this agent, or is none.
            HandshakeError: it refuses us: wrong token or version.
            UnreachableError: nobody took us in within `wait_s` seconds from the start.
        """
        loop = asyncio.get_running_loop()
        until_s, pause_s, told = loop.time() + wait_s, PAUSE_S_MIN, ""
        while True:
            try:
                await self._once()
                pause_s = PAUSE_S_MIN
            except (ConfigurationError, HandshakeError):
                if not self._core.run:
                    raise
            except AdamctlError as error:
                if isinstance(error, RemoteError) and error.code == ErrorCode.BAD_CONFIGURATION:
                    raise ConfigurationError(str(error)) from error
                if str(error) != told:
                    told = str(error)
                    self._log.info("no front yet: %s", error)
                if not self._core.run and loop.time() >= until_s:
                    raise UnreachableError(
                        f"no front at {self._address} took this host in within {wait_s:g} s ({error}); check --front, "
                        "and that adamctl train is running"
                    ) from error
            self._core.lost_front(loop.time())
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _once(self) -> None:
        """Joins, and works until the connection breaks; returns or raises then."""
        connection = await self._transport.connect(self._address, self._hello, deadline_s=DIAL_S)
        try:
            if connection.peer.role != "front":
                raise ConfigurationError(
                    f"expected the front of a run at {self._address}, found {connection.peer.role} "
                    f"{connection.peer.node}; give --front the address that adamctl train shows"
                )
            request = self._join(self._core.run)
            self._process = request.process
            reply = (await connection.request(request, deadline_s=ANSWER_S)).message
            assert isinstance(reply, HostJoinReply)
            self._on_joined(reply)
            self._news.set()
            tasks = [asyncio.ensure_future(part) for part in (self._take_orders(connection), self._report(connection))]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await connection.close()

    async def _take_orders(self, connection: Connection) -> None:
        node = self._hello.node
        while True:
            request = HostOrdersRequest(node, self._process, self._core.last_order, ORDERS_WAIT_S)
            reply = await connection.request(request, deadline_s=ORDERS_WAIT_S + ANSWER_S)
            try:
                assert isinstance(reply.message, HostOrdersReply)
                orders: list[Order] = _ORDERS.decode(reply.body) if len(reply.body) else []
            except UNREADABLE as error:
                raise ProtocolError(f"{connection.peer_name} sent orders that cannot be read: {error}") from error
            finally:
                reply.release()
            self._on_orders(orders)

    async def _report(self, connection: Connection) -> None:
        while True:
            self._news.clear()
            first, reports = self._core.unconfirmed()
            if reports:
                part, body = fitting(reports)
                request = HostReportRequest(self._hello.node, self._process, first)
                await connection.request(request, (body,), deadline_s=ANSWER_S)
                self._core.confirmed(first + part - 1)
            else:
                await self._news.wait()


def fitting(reports: Sequence[Report]) -> tuple[int, bytes]:
    """Returns how many of the reports, from the first on, one request carries, and its body."""
    count = min(len(reports), REPORTS_MAX)
    while True:
        body = msgspec.msgpack.encode(reports[:count])
        if len(body) <= REPORT_BYTES_MAX or count == 1:
            return count, body
        count = max(count // 2, 1)

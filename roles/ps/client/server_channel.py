"""A client's view of one server: a connection that is restored when lost, and pushes that stay in order.

Servers apply only the next number of a client on a shard. So after a failure the pushes of a shard are sent one at a
time, oldest first, until everything that was in flight at the failure is answered. Otherwise pushes are pipelined.
Envelopes without a common shard never wait for each other: a part of a step is held until all parts of its shard are
there, and those may lie in an envelope that would wait (see `adamctl.roles.ps.core.sync_steps`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager
from typing import TypeAlias

from adamctl.errors import DeadlineError, UnreachableError
from adamctl.net.transport import Body, Connection, Reply
from adamctl.wire.messages import Message

Order: TypeAlias = tuple[int, int]
"""(number of the push, number of the envelope in it); smaller is older."""

Direct: TypeAlias = Callable[[Connection], Awaitable[Message | None]]
"""Returns a request that names memory which the connection's server has mapped, or None if it has not."""


class ServerChannel:
    """One connection to one server, made again when it was lost.

    Attributes:
        node: the server's name.
        connection: which of the connections to that server.
        trouble: the last failure, for messages; empty if the last request was answered.
    """

    def __init__(self, node: str, connect: Callable[[str], Awaitable[Connection]], connection: int = 0) -> None:
        """`connect(node)` looks the server up, connects and attaches."""
        self.node = node
        self.connection = connection
        self.trouble = ""
        self._connect = connect
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._unfinished: dict[Order, Set[int]] = {}
        self._careful_until: Order | None = None
        self._progress = asyncio.Condition()

    @property
    def kind(self) -> str:
        """See `Connection.kind`; empty if not connected."""
        return "" if self._connection is None or self._connection.closed else self._connection.kind

    async def connected(self) -> Connection:
        """Returns the connection; connects if necessary. Raises UnreachableError and what attaching raises."""
        connection = self._connection
        if connection is not None and not connection.closed:
            return connection
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect(self.node)
            return self._connection

    async def request(
        self,
        message: Message,
        body: Body = (),
        *,
        deadline_s: float,
        into: Sequence[memoryview] | None = None,
        direct: Direct | None = None,
    ) -> Reply:
        """Like `Connection.request`, but connects first if necessary and notes failures in `trouble`.

        If `direct` returns a request for the connection, that is sent instead, without a body.
        """
        try:
            connection = await self.connected()
            instead = await direct(connection) if direct is not None else None
            if instead is not None:
                reply = await connection.request(instead, deadline_s=deadline_s)
            else:
                reply = await connection.request(message, body, deadline_s=deadline_s, into=into)
        except (UnreachableError, DeadlineError) as error:
            self.trouble = str(error)
            raise
        self.trouble = ""
        return reply

    async def drop(self) -> None:
        """Closes the connection; the next request makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def unfinished(self, order: Order, shards: Set[int]) -> AsyncIterator[None]:
        """Counts the envelope as unanswered inside the `with` block; `shards` are those that are not answered yet."""
        self._unfinished[order] = shards
        try:
            yield
        finally:
            del self._unfinished[order]
            if self._careful_until is not None:
                if not self._unfinished or min(self._unfinished) > self._careful_until:
                    self._careful_until = None
                await self._tell()

    async def answered(self) -> None:
        """Lets envelopes go on that waited for shards which are no longer unanswered."""
        if self._careful_until is not None:
            await self._tell()

    async def turn(self, order: Order) -> bool:
        """Waits until the envelope may be sent; returns whether it had to wait."""
        if self._careful_until is None or self.is_next(order):
            return False
        async with self._progress:
            await self._progress.wait_for(lambda: self._careful_until is None or self.is_next(order))
        return True

    def is_next(self, order: Order) -> bool:
        """Returns whether no older envelope waits for an answer of one of this envelope's shards."""
        own = self._unfinished[order]
        return all(own.isdisjoint(shards) for other, shards in self._unfinished.items() if other < order)

    def be_careful(self) -> None:
        """Sends a shard's pushes one at a time, oldest first, from now on: something was lost or came out of order."""
        if self._unfinished:
            self._careful_until = max(self._unfinished)

    async def _tell(self) -> None:
        async with self._progress:
            self._progress.notify_all()

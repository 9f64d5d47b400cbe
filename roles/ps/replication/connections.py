"""Connections to the other parameter servers, over the addresses that take replication: one each, made when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from adamctl.config.records import NodeRecord
from adamctl.errors import UnreachableError
from adamctl.net.transport import Body, Connection, Reply
from adamctl.roles.context import RoleContext
from adamctl.wire.messages import Message

CONNECT_S_MAX = 2.0


class PeerLinks:
    """All links of one server; used on the event loop only.

    Attributes:
        nodes: the living parameter servers by name.
        sent_bytes: of bodies.
    """

    def __init__(self, context: RoleContext) -> None:
        self.nodes: Mapping[str, NodeRecord] = {}
        self.sent_bytes = 0
        self._context = context
        self._links: dict[str, _Link] = {}

    def take(self, nodes: Mapping[str, NodeRecord]) -> None:
        """Takes in who lives; `request` connects anew where a name is another process now."""
        self.nodes = nodes

    def incarnation(self, node: str) -> int:
        """Returns which process of this name was spoken to last, 0 if none was."""
        link = self._links.get(node)
        return link.incarnation if link is not None else 0

    async def request(self, node: str, message: Message, body: Body = (), *, deadline_s: float) -> Reply:
        """Sends a request; those to one node arrive in the order in which they are made.

        Raises:
            UnreachableError: no such node lives, it cannot be reached, or it did not answer in time.
            RemoteError: it refused.
            ProtocolError: it broke the format.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = _Link(self._context)
        connection = link.open_to(self.nodes.get(node))
        if connection is None:
            record = self.nodes.get(node)
            if record is None:
                raise UnreachableError(f"no living parameter server is called {node}")
            connection = await link.connect(record, min(deadline_s, CONNECT_S_MAX))
        self.sent_bytes += sum(memoryview(piece).nbytes for piece in body)
        try:
            return await connection.request(message, body, deadline_s=max(until_s - loop.time(), 0.001))
        except UnreachableError:
            if connection.closed:
                self._context.lost_sight_of(node, connection.peer.incarnation)
            raise

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()


class _Link:
    """The connection to one node."""

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._connection: Connection | None = None
        self._attempt: asyncio.Task[Connection] | None = None
        self.incarnation = 0

    def open_to(self, record: NodeRecord | None) -> Connection | None:
        """Returns the connection if there is one and it is to the process that is registered under the name."""
        connection = self._connection
        if connection is None or connection.closed:
            return None
        if record is not None and connection.peer.incarnation < record.incarnation:
            return None
        return connection

    async def connect(self, record: NodeRecord, deadline_s: float) -> Connection:
        """Whoever asks while an attempt is under way shares its outcome."""
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect(record, deadline_s))
            self._attempt.add_done_callback(_retrieved)
        return await asyncio.shield(self._attempt)

    async def _connect(self, record: NodeRecord, deadline_s: float) -> Connection:
        try:
            if self._connection is not None:
                await self._connection.close()
            self._connection = await self._context.connect(record, deadline_s, takes="replication")
            self.incarnation = self._connection.peer.incarnation
            return self._connection
        finally:
            self._attempt = None

    async def close(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _retrieved(attempt: asyncio.Task[Connection]) -> None:
    """Those who waited may have been ended before it failed."""
    if not attempt.cancelled():
        attempt.exception()

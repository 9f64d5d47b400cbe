"""Connections to other parameter servers' replication addresses: one per server, made when needed."""

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
    """All connections of one server to others; used on the event loop only.

    Attributes:
        nodes: the live parameter servers by name.
        sent_bytes: total size of bodies sent.
    """

    def __init__(self, context: RoleContext) -> None:
        self.nodes: Mapping[str, NodeRecord] = {}
        self.sent_bytes = 0
        self._context = context
        self._links: dict[str, _Link] = {}

    def take(self, nodes: Mapping[str, NodeRecord]) -> None:
        """Takes in the live servers; `request` reconnects if a name belongs to a new process."""
        self.nodes = nodes

    def incarnation(self, node: str) -> int:
        """Returns the incarnation that was last connected under this name, 0 if none."""
        link = self._links.get(node)
        return link.incarnation if link is not None else 0

    async def request(self, node: str, message: Message, body: Body = (), *, deadline_s: float) -> Reply:
        """Sends a request; requests to one node arrive in the order they are made.

        Raises:
            UnreachableError: the node is not live, cannot be reached, or did not answer in time.
            RemoteError: it refused the request.
            ProtocolError: its answer violates the wire format.
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
                raise UnreachableError(f"no parameter server named {node} is registered")
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
        """Returns the connection if it is open and leads to the process registered under the name, else None."""
        connection = self._connection
        if connection is None or connection.closed:
            return None
        if record is not None and connection.peer.incarnation < record.incarnation:
            return None
        return connection

    async def connect(self, record: NodeRecord, deadline_s: float) -> Connection:
        """Connects; concurrent callers share one attempt."""
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
    """Marks the attempt's error as seen; its waiters may have been cancelled before it failed."""
    if not attempt.cancelled():
        attempt.exception()

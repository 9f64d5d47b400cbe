"""One data server as its client sees it: how to reach it, and how long to avoid it after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from adamctl.errors import UnreachableError
from adamctl.net.transport import Connection, Reply
from adamctl.wire.messages import Message

if TYPE_CHECKING:
    from adamctl.roles.context import RoleContext

_CONNECT_S: Final = 5.0
_AWAY_FIRST_S: Final = 0.05  # how long to avoid a server that failed, doubled up to the next constant
_AWAY_MAX_S: Final = 2.0

Connector = Callable[[], Awaitable[Connection]]


class DataServerLink:
    """`reason` is its last failure; the connection is made when needed.

    `files`: by name of a data set that was opened over it, what the server said of its files.
    """

    def __init__(self, name: str, connect: Connector) -> None:
        self.name = name
        self.away_until_s = 0.0
        self.reason = "not tried yet"
        self.files: dict[str, bytes] = {}
        self._away_s = _AWAY_FIRST_S
        self._connect = connect
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def request(
        self,
        message: Message,
        body: Sequence[bytes] = (),
        *,
        deadline_s: float,
        into: Sequence[memoryview] | None = None,
    ) -> Reply:
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect()
        reply = await self._connection.request(message, body, deadline_s=deadline_s, into=into)
        self._away_s = _AWAY_FIRST_S
        return reply

    def failed(self, now_s: float, error: Exception) -> None:
        self.reason = str(error)
        self.away_until_s = now_s + self._away_s
        self._away_s = min(2 * self._away_s, _AWAY_MAX_S)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def connector_over(connection: Connection) -> Connector:
    """Returns a connector that returns this connection while it is open."""

    async def connect() -> Connection:
        if connection.closed:
            raise UnreachableError(f"the connection to {connection.peer_name} is closed")
        return connection

    return connect


def connector_of_node(context: RoleContext, node: str) -> Connector:
    """Returns a connector that looks up a node's addresses each time."""

    async def connect() -> Connection:
        from adamctl.config.records import NodeRecord, node_key
        from adamctl.net.address import prefer
        from adamctl.roles.configuration import read_record

        assert context.controller is not None
        found = await read_record(context.controller, node_key(node), NodeRecord)
        if found is None:
            raise UnreachableError(f"{node} is not registered with the controller")
        record, _ = found
        return await context.transport.connect(
            prefer(record.addresses, record.host),
            context.hello(),
            deadline_s=_CONNECT_S,
            expects=(record.role, record.node),
        )

    return connect

"""Asks a run's parameter servers now and then whether something is wrong with them, for the live view to show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from adamctl.errors import AdamctlError
from adamctl.net.transport import Connection, Transport
from adamctl.wire.messages import Hello, StatusReply, StatusRequest

LOOK_EVERY_S = 2.0
DEADLINE_S = 2.0


class Troubles:
    """What the servers of a run say is wrong with them. Used by one event loop.

    Attributes:
        found: by node, only of those that say something.
    """

    def __init__(self, transport: Transport, hello: Callable[[], Hello], every_s: float = LOOK_EVERY_S) -> None:
        self.found: dict[str, str] = {}
        self._transport, self._hello, self._every_s = transport, hello, every_s
        self._addresses: dict[str, str] = {}
        self._connections: dict[str, Connection] = {}

    def serves(self, node: str, addresses: Sequence[str]) -> None:
        """A server is reached at these addresses, the nearest first."""
        self._addresses[node] = addresses[0]

    async def follow(self) -> None:
        """Looks until it is cancelled."""
        try:
            while True:
                await asyncio.gather(*map(self._look, tuple(self._addresses)))
                await asyncio.sleep(self._every_s)
        finally:
            await asyncio.gather(*(one.close() for one in self._connections.values()), return_exceptions=True)

    async def _look(self, node: str) -> None:
        """What a server does not say is left as it was: that it is gone others find out."""
        try:
            connection = self._connections.get(node)
            if connection is None or connection.closed:
                connection = await self._transport.connect(self._addresses[node], self._hello(), deadline_s=DEADLINE_S)
                self._connections[node] = connection
            reply = (await connection.request(StatusRequest(), deadline_s=DEADLINE_S)).message
        except (AdamctlError, TimeoutError):
            return
        assert isinstance(reply, StatusReply)
        store = reply.status.get("store")
        text = str(store.get("degraded") or "") if isinstance(store, dict) else ""
        if text:
            self.found[node] = text
        else:
            self.found.pop(node, None)

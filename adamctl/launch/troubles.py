"""Asks a run's parameter servers periodically whether something is wrong, for the live view to show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from adamctl.errors import AdamctlError
from adamctl.net.transport import Connection, Transport
from adamctl.wire.messages import Hello, StatusReply, StatusRequest

LOOK_EVERY_S = 2.0
DEADLINE_S = 2.0


class Troubles:
    """Problems that the servers of a run report. Used by one event loop.

    Attributes:
        found: node -> problem, only of nodes that report one.
    """

    def __init__(self, transport: Transport, hello: Callable[[], Hello], every_s: float = LOOK_EVERY_S) -> None:
        self.found: dict[str, str] = {}
        self._transport, self._hello, self._every_s = transport, hello, every_s
        self._addresses: dict[str, str] = {}
        self._connections: dict[str, Connection] = {}

    def serves(self, node: str, addresses: Sequence[str]) -> None:
        """Notes that a server is reachable at these addresses, nearest first."""
        self._addresses[node] = addresses[0]

    async def follow(self) -> None:
        """Asks until cancelled."""
        try:
            while True:
                await asyncio.gather(*map(self._look, tuple(self._addresses)))
                await asyncio.sleep(self._every_s)
        finally:
            await asyncio.gather(*(one.close() for one in self._connections.values()), return_exceptions=True)

    async def _look(self, node: str) -> None:
        """A server that does not answer keeps its last entry: others detect that it is gone."""
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

"""Keeps the answers that a server's peers have not taken yet within one quota, without penalising normal waiting.

While the quota is used up, no requests are read: all peers wait for those that are taking their answers. A peer that
takes none, or only a trickle, would make the others wait forever, and is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from adamctl.errors import AdamctlError, UnreachableError
from adamctl.net.limits import ServerLimits


class Debtor(Protocol):
    """A connection as the quota sees it; `kept_pace_s` is when it last took answers fast enough."""

    outgoing_bytes: int
    kept_pace_s: float

    @property
    def closing(self) -> bool: ...

    @property
    def write_stalled(self) -> bool: ...

    def advance(self) -> None: ...

    def end(self, reason: AdamctlError, *, at_once: bool = False) -> None: ...


class ReplyQuota:
    """The unsent answers of one server. Belongs to the server's event loop.

    Attributes:
        used_bytes: of all connections together; may exceed the quota by answers to requests read before.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.used_bytes = 0
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Debtor, None] = {}  # first in, first out

    def count(self, change_bytes: int, connections: Iterable[Debtor]) -> None:
        """Adds to the used bytes; once there is room again, waiting connections continue.

        A peer may have many requests in flight before the first answer is ready. When answers reach twice the quota in
        total, the peer with most of them is cut at once, unless a single request could account for its share.
        """
        before_bytes, quota_bytes = self.used_bytes, self._limits.reply_memory_bytes_max
        self.used_bytes += change_bytes
        if self.used_bytes < quota_bytes <= before_bytes and self._waiting:
            self._loop.call_soon(self._go_on)
        elif change_bytes > 0 and self.used_bytes > 2 * quota_bytes:
            worst = max(connections, key=lambda one: one.outgoing_bytes, default=None)
            if worst is not None and worst.write_stalled and worst.outgoing_bytes > 2 * self._limits.reply_bytes_max:
                _cut(worst)

    def has_room(self, connection: Debtor) -> bool:
        """Whether another request of a connection may be read; if not, its `advance` is called once it may."""
        if self.used_bytes < self._limits.reply_memory_bytes_max:
            return True
        self._waiting[connection] = None
        return False

    def forget(self, connection: Debtor) -> None:
        self._waiting.pop(connection, None)

    def press(self, connections: Iterable[Debtor], now: float) -> None:
        """While the quota is used up, cuts peers that do not keep pace, largest debt first."""
        excess_bytes = self.used_bytes - self._limits.reply_memory_bytes_max
        if excess_bytes < 0:
            return
        slow = [one for one in connections if now - one.kept_pace_s > self._limits.reply_patience_s and not one.closing]
        for connection in sorted(slow, key=lambda one: -one.outgoing_bytes):
            excess_bytes -= connection.outgoing_bytes
            _cut(connection)
            if excess_bytes < 0:
                return

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            if not connection.closing:
                connection.advance()


def _cut(connection: Debtor) -> None:
    connection.end(
        UnreachableError("the peer does not take its answers, and the quota for answers is used up"), at_once=True
    )

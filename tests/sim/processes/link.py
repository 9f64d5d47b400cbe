"""Connections that keep what TCP promises: what is sent comes once and in its order, until one end gives up.

What the network loses is sent again and what it doubles is dropped, by hosts, also while a process is stopped. An end
that hears no acknowledgement for long enough breaks, though all it has sent may have come; the other end may not hear
of that, or only when it sends something itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.sim.engine import World

RESEND_S = 0.05
ATTEMPTS_MAX = 6


class End:
    """One end of a connection.

    Attributes:
        number: of the connection.
        host, peer: whose end it is, and the other end.
        take: gets each message that comes.
        broken: called once when the connection is gone, unless this end has closed it.
    """

    peer: End

    def __init__(self, world: World, number: int, host: str) -> None:
        self.world, self.number, self.host = world, number, host
        self.take: Callable[[Any], None] = lambda message: None
        self.broken: Callable[[], None] = lambda: None
        self.open = True
        self._sent = self._expected = 0
        self._unacknowledged: dict[int, object] = {}
        self._early: dict[int, object] = {}

    def send(self, message: object) -> None:
        """Sends a message after those before it, if the connection is there."""
        if self.open:
            number, self._sent = self._sent, self._sent + 1
            self._unacknowledged[number] = message
            self._attempt(number, 0)

    def close(self, *, tells: bool = True) -> None:
        """Nothing is sent or taken any more; the other end is told, if the host does that."""
        self.open = False
        if tells:
            self.world.send(self.host, self.peer.host, self.peer._reset)

    def _attempt(self, number: int, attempt: int) -> None:
        if not self.open or number not in self._unacknowledged:
            return
        if attempt > ATTEMPTS_MAX:
            self.world.send(self.host, self.peer.host, self.peer._reset)
            self._reset()
            return
        message = self._unacknowledged[number]
        self.world.send(self.host, self.peer.host, partial(self.peer._arrives, number, message))
        self.world.after(RESEND_S * 2**attempt, partial(self._attempt, number, attempt + 1))

    def _arrives(self, number: int, message: object) -> None:
        if not self.open:
            self.world.send(self.host, self.peer.host, self.peer._reset)
            return
        self.world.send(self.host, self.peer.host, partial(self.peer._acknowledged, number))
        if number >= self._expected:
            self._early[number] = message
        while self.open and self._expected in self._early:
            self._expected += 1
            self.take(self._early.pop(self._expected - 1))

    def _acknowledged(self, number: int) -> None:
        self._unacknowledged.pop(number, None)

    def _reset(self) -> None:
        if self.open:
            self.open = False
            self.broken()


def connect(world: World, number: int, first: str, second: str) -> tuple[End, End]:
    """Returns the two ends of a new connection between two hosts."""
    ends = End(world, number, first), End(world, number, second)
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    return ends

"""Gives the buffers of a pool to connections in turn, so that under load all receive equally much."""

from __future__ import annotations

import asyncio
from typing import Protocol

from adamctl.net.pool import BufferPool, PooledBuffer


class Taker(Protocol):
    """A connection that wants a buffer for the body it is about to receive."""

    @property
    def closing(self) -> bool:
        """Whether it no longer wants a buffer."""
        ...

    def resume_blocked(self) -> None:
        """Asks again."""


class Turns:
    """Connections that wait for a buffer, first in, first out. Belongs to one event loop.

    A connection that wants one while others wait queues behind them, even if there is room: otherwise connections with
    lucky timing would be served repeatedly, and a long body never.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Taker, None] = {}
        self._told = False  # whether the pool will call us back

    def allocate(self, taker: Taker, size_bytes: int) -> PooledBuffer | None:
        """Returns a buffer, or None: then `taker.resume_blocked` is called on its turn, when there may be room."""
        if self._waiting and next(iter(self._waiting)) is not taker:
            self._waiting[taker] = None
            return None
        buffer = self._pool.try_allocate(size_bytes)
        if buffer is None:
            self._listen()
            buffer = self._pool.try_allocate(size_bytes)  # catches a release before we listened
        if buffer is None:
            self._waiting[taker] = None
        else:
            self.leave(taker)
        return buffer

    def leave(self, taker: Taker) -> None:
        """Removes a connection that has its buffer or is gone; then the next one tries."""
        if taker in self._waiting:
            del self._waiting[taker]
            self._loop.call_soon(self._next)

    def _listen(self) -> None:
        if not self._told:
            self._told = True
            self._pool.when_released(self._released)

    def _released(self) -> None:
        """Called from the thread that released a buffer."""
        try:
            self._loop.call_soon_threadsafe(self._heard)
        except RuntimeError:  # the loop has ended
            return

    def _heard(self) -> None:
        self._told = False
        self._next()

    def _next(self) -> None:
        while self._waiting:
            first = next(iter(self._waiting))
            if not first.closing:
                first.resume_blocked()
                return
            del self._waiting[first]  # it may take long to close if its peer does not read

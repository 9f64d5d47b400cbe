"""Gives the buffers of a pool to connections in turn, so that under load everyone receives as much as the others."""

from __future__ import annotations

import asyncio
from typing import Protocol

from adamctl.net.pool import BufferPool, PooledBuffer


class Taker(Protocol):
    """A connection that wants a buffer for the body it is about to receive."""

    @property
    def closing(self) -> bool:
        """Whether it asks for nothing any more."""
        ...

    def resume_blocked(self) -> None:
        """Asks for it again."""


class Turns:
    """Who waits for a buffer, first in, first out. Belongs to one event loop.

    Whoever wants one while others wait goes behind them, even if there is room: else a connection whose body comes at
    the right moment would be served again and again, and a long body never.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Taker, None] = {}
        self._told = False  # whether the pool will call us

    def allocate(self, taker: Taker, size_bytes: int) -> PooledBuffer | None:
        """Returns a buffer, or None: then `taker.resume_blocked` is called when it is its turn and may be room."""
        if self._waiting and next(iter(self._waiting)) is not taker:
            self._waiting[taker] = None
            return None
        buffer = self._pool.try_allocate(size_bytes)
        if buffer is None:
            self._listen()
            buffer = self._pool.try_allocate(size_bytes)  # what was released before it listened
        if buffer is None:
            self._waiting[taker] = None
        else:
            self.leave(taker)
        return buffer

    def leave(self, taker: Taker) -> None:
        """A connection waits no longer: it has its buffer, or is gone. The next one tries."""
        if taker in self._waiting:
            del self._waiting[taker]
            self._loop.call_soon(self._next)

    def _listen(self) -> None:
        if not self._told:
            self._told = True
            self._pool.when_released(self._released)

    def _released(self) -> None:
        """Called from whichever thread has released a buffer."""
        try:
            self._loop.call_soon_threadsafe(self._heard)
        except RuntimeError:  # the loop has ended meanwhile
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
            del self._waiting[first]  # it may be long in going, if its peer does not read

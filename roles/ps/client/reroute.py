"""How a client follows buckets that move: it reads the routing again when there is reason to, but not too often.

A killed server breaks its connections; a stopped or partitioned one is silent. So if buckets have copies, a client
that has waited for an answer for a while checks whether another server has taken over, and goes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from random import random
from typing import Any, TypeVar

from adamctl.errors import RemoteError, UnreachableError

Answer = TypeVar("Answer")

READ_EVERY_S = 0.1
OVERDUE_S = 0.3
"""If an answer takes longer, the routing is read, repeatedly until the answer comes."""
LOOK_S = 1.0
"""How long a failed request waits for the configuration service before it is sent to the same server again."""
PAUSE_FIRST_S = 0.01
PAUSE_LONGEST_S = 1.0
PAUSE_LONGEST_COPIES_S = 0.1


class Rerouting:
    """Readings of one job's routing, shared by all requests of one client."""

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        """`read` reads the routing and stores it where requests find it."""
        self._read = read
        self._reading: asyncio.Task[None] | None = None
        self._ended_s = -inf

    async def read(self) -> None:
        """Reads the routing, once for all concurrent callers. Raises what the reading raises."""
        await asyncio.shield(self._start_reading())

    async def look(self) -> None:
        """Like `read`, but returns after LOOK_S if the configuration service has not answered by then.

        Raises:
            RemoteError: the job is unknown or has ended.
        """
        reading = self._start_reading()
        await asyncio.wait({reading}, timeout=LOOK_S)
        _raise_refusal(reading)

    async def answer(self, request: Coroutine[Any, Any, Answer], moved: Callable[[], bool]) -> Answer:
        """Returns the request's result.

        Raises:
            UnreachableError: `moved` says that another server should get it by now; the request was abandoned.
            RemoteError: the job is unknown or has ended; and what the request raises.
        """
        asking = asyncio.ensure_future(request)
        try:
            while True:
                await asyncio.wait({asking}, timeout=OVERDUE_S * _jitter())
                if not asking.done():
                    reading = self._start_reading()
                    await asyncio.wait({asking, reading}, return_when=asyncio.FIRST_COMPLETED)
                    if not asking.done():
                        _raise_refusal(reading)
                if asking.done():
                    return asking.result()
                if moved():
                    raise UnreachableError("no answer, and another server has taken over")
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            del asking  # its failure has this frame, with the push in it; they would wait for the garbage collector

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _start_reading(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._run())
            self._reading.add_done_callback(_retrieved)
        return self._reading

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            wait_s = self._ended_s + READ_EVERY_S * _jitter() - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await self._read()
        finally:
            self._ended_s = loop.time()
            self._reading = None


async def pause(attempt: int, *, copies: bool = False) -> None:
    """Waits before retry number `attempt` (from 0), longer each time; not for long if another server may take over."""
    longest_s = PAUSE_LONGEST_COPIES_S if copies else PAUSE_LONGEST_S
    await asyncio.sleep(min(PAUSE_FIRST_S * 2 ** min(attempt, 10), longest_s) * (_jitter() if copies else 1.0))


def _jitter() -> float:
    """Returns a random factor around 1, so that clients that lost a server together do not all retry at once."""
    return 0.75 + 0.5 * random()


def _raise_refusal(reading: asyncio.Task[None]) -> None:
    if reading.done() and not reading.cancelled():
        error = reading.exception()
        if isinstance(error, RemoteError):
            raise error


def _retrieved(reading: asyncio.Task[None]) -> None:
    """Marks a reading's error as seen; there may be no caller waiting for it any more."""
    if not reading.cancelled():
        reading.exception()

"""Memory for bodies goes round: first in, first out, whatever each wants and however often it comes."""

from __future__ import annotations

import asyncio

from adamctl.net.pool import BufferPool, PooledBuffer
from adamctl.net.turns import Turns

BLOCK = 4 << 10


class Connection:
    """Wants buffers of one size, as many as it gets, and holds each until it is told to release it."""

    def __init__(self, turns: Turns, size_bytes: int = BLOCK) -> None:
        self.turns, self.size_bytes = turns, size_bytes
        self.held: list[PooledBuffer] = []
        self.served = 0
        self.closing = False

    def resume_blocked(self) -> None:
        buffer = self.turns.allocate(self, self.size_bytes)
        if buffer is not None:
            self.held.append(buffer)
            self.served += 1

    def release(self) -> None:
        for buffer in self.held:
            buffer.release()
        self.held.clear()


async def test_whoever_comes_again_goes_behind_those_who_wait() -> None:
    turns = Turns(BufferPool(BLOCK))
    connections = [Connection(turns) for _ in range(5)]
    for connection in connections:
        connection.resume_blocked()
    assert [connection.served for connection in connections] == [1, 0, 0, 0, 0]
    for _ in range(50):
        for connection in connections:
            if connection.held:
                connection.release()
                connection.resume_blocked()  # the next body is there at once
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    served = [connection.served for connection in connections]
    assert max(served) - min(served) <= 1 and sum(served) >= 40, served


async def test_a_long_body_is_not_passed_by_for_ever() -> None:
    turns = Turns(BufferPool(4 * BLOCK))
    small = [Connection(turns) for _ in range(3)]
    large = Connection(turns, 4 * BLOCK)
    for connection in (*small, large):
        connection.resume_blocked()
    for _ in range(3):
        for connection in small:
            connection.release()
            connection.resume_blocked()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert large.served == 1


async def test_the_next_one_is_asked_when_one_that_waits_has_gone() -> None:
    pool = BufferPool(BLOCK)
    turns = Turns(pool)
    first, gone, last = (Connection(turns) for _ in range(3))
    for connection in (first, gone, last):
        connection.resume_blocked()
    first.release()
    turns.leave(gone)
    for _ in range(3):
        await asyncio.sleep(0)
    assert last.served == 1 and not gone.served
    last.release()
    assert pool.statistics().outstanding_bytes == 0


async def test_one_that_is_closing_and_not_gone_yet_holds_up_nobody() -> None:
    pool = BufferPool(BLOCK)
    turns = Turns(pool)
    first, closing, other, last = (Connection(turns) for _ in range(4))
    for connection in (first, closing, other, last):
        connection.resume_blocked()
    closing.closing = other.closing = True
    first.release()
    for _ in range(3):
        await asyncio.sleep(0)
    assert last.served == 1 and not closing.served and not other.served
    turns.leave(closing)
    last.release()
    assert pool.statistics().outstanding_bytes == 0

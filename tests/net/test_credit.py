"""Bodies in flight and memory stay within their bounds, and everyone is served in turn; on every transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adamctl.errors import DeadlineError
from adamctl.net.transport import Request
from adamctl.wire.messages import (
    BenchBlockRequest,
    Empty,
    PullRequest,
    PushReply,
    PushRequest,
)
from tests.net.async_handler import async_handler
from tests.net.world import World, everywhere, until

PULL = PullRequest("job", {}, (1,))
PUSH = PushRequest("job", {}, 0.1, 1, 1, (), ())


def mirror(request: Request) -> None:
    """Answers a push with its own body."""
    request.reply(PushReply(()), [bytes(request.body)])


@everywhere()
async def test_bodies_in_flight_never_exceed_the_credit(world: World) -> None:
    waiting: list[Request] = []
    most = 0
    _, connection = await world.pair(waiting.append, credit_bytes=100_000)
    assert connection.peer.credit_bytes == 100_000
    tasks = [asyncio.ensure_future(connection.request(PUSH, [bytes(30_000)], deadline_s=60)) for _ in range(20)]
    answered = 0
    while answered < 20:
        await until(lambda: bool(waiting))
        await asyncio.sleep(0.005)
        most = max(most, len(waiting))
        assert connection.in_flight_bytes <= 100_000
        assert sum(len(request.body) for request in waiting) <= 100_000
        waiting.pop(0).reply(PushReply(()))
        answered += 1
    await asyncio.gather(*tasks)
    assert most == 3
    assert connection.in_flight_bytes == 0


@everywhere()
async def test_credit_is_given_first_come_first_served(world: World) -> None:
    kept: list[Request] = []
    _, connection = await world.pair(kept.append, credit_bytes=100)
    tasks = [
        asyncio.ensure_future(connection.request(BenchBlockRequest(number), [bytes(size)], deadline_s=60))
        for number, size in enumerate((100, 60, 1, 60, 1))
    ]
    order = []
    for _ in tasks:
        await until(lambda: bool(kept))
        request = kept.pop(0)
        order.append(getattr(request.message, "number", None))
        request.reply(Empty())
    assert order == [0, 1, 2, 3, 4]
    await asyncio.gather(*tasks)


@everywhere()
async def test_waiting_for_credit_ends_with_the_deadline(world: World) -> None:
    kept: list[Request] = []
    _, connection = await world.pair(kept.append, credit_bytes=100)
    first = asyncio.ensure_future(connection.request(BenchBlockRequest(0), [bytes(100)], deadline_s=60))
    await until(lambda: len(kept) == 1)
    with pytest.raises(DeadlineError, match="credit"):
        await connection.request(BenchBlockRequest(1), [bytes(100)], deadline_s=0.05)
    await until(lambda: len(kept) == 1)
    kept[0].reply(Empty())
    await first


@everywhere()
async def test_a_body_longer_than_the_credit_still_passes(world: World) -> None:
    _, connection = await world.pair(mirror, credit_bytes=1000)
    reply = await connection.request(PUSH, [bytes(50_000)], deadline_s=10)
    reply.release()


@everywhere()
async def test_one_way_requests_give_their_credit_back(world: World) -> None:
    received = 0

    def handle(request: Request) -> None:
        nonlocal received
        if request.one_way:
            received += len(request.body)
        request.reply(Empty())

    _, connection = await world.pair(handle, credit_bytes=100_000)
    for number in range(50):
        await connection.send_one_way(BenchBlockRequest(number), [bytes(20_000)], deadline_s=30)
        assert connection.in_flight_bytes <= 100_000
    await connection.request(BenchBlockRequest(50), deadline_s=30)
    await until(lambda: received == 50 * 20_000)


@everywhere()
async def test_memory_stays_within_the_quota_and_everyone_is_served(world: World) -> None:
    async def slow(request: Request) -> Any:
        await asyncio.sleep(0.001)
        return Empty()

    server = await world.serve(async_handler(slow), memory_bytes_max=32 << 20)
    connections = [await world.connect(server) for _ in range(4)]
    body = bytes(4 << 20)
    await asyncio.gather(
        *(
            connection.request(BenchBlockRequest(number), [body], deadline_s=120)
            for number in range(5)
            for connection in connections
        )
    )
    assert server.pool.statistics().peak_outstanding_bytes <= 32 << 20


@everywhere()
async def test_a_reply_that_nobody_reads_waits_for_room(world: World) -> None:
    world.transport.pool.quota_bytes = 64 << 10
    _, connection = await world.pair(mirror)
    first = await connection.request(PUSH, [bytes(50_000)], deadline_s=10)
    second = asyncio.ensure_future(connection.request(PUSH, [bytes(50_000)], deadline_s=60))
    await asyncio.sleep(0.02)
    assert not second.done()
    first.release()
    (await second).release()


@everywhere()
async def test_giving_up_returns_the_credit(world: World) -> None:
    kept: list[Request] = []
    _, connection = await world.pair(kept.append, credit_bytes=100)
    task = asyncio.ensure_future(connection.request(BenchBlockRequest(0), [bytes(100)], deadline_s=60))
    await until(lambda: len(kept) == 1)
    task.cancel()
    await asyncio.wait([task])
    kept.pop().reply(Empty())
    second = asyncio.ensure_future(connection.request(BenchBlockRequest(1), [bytes(100)], deadline_s=60))
    await until(lambda: len(kept) == 1)
    kept.pop().reply(Empty())
    await second

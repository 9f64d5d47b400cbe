"""What every transport promises (adamctl/net/transport.py), one test per promise."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DeadlineError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    BenchBlockRequest,
    Empty,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
)
from tests.net.async_handler import async_handler
from tests.net.world import World, everywhere, until

PULL = PullRequest("job", {}, (1,))
PUSH = PushRequest("job", {}, 0.1, 1, 1, (), ())


def mirror(request: Request) -> None:
    """Answers a push with its own body."""
    request.reply(PushReply(()), [bytes(request.body)])


@everywhere()
async def test_a_request_gets_its_reply(world: World) -> None:
    server, connection = await world.pair(lambda request: request.reply(StatusReply({"role": "ps"})))
    reply = await connection.request(StatusRequest(), deadline_s=10)
    assert reply.message == StatusReply({"role": "ps"})
    assert bytes(reply.body) == b""
    assert (connection.peer.role, connection.peer.node, connection.peer.incarnation) == ("ps", "ps-0", 3)
    assert server.addresses[0] in connection.peer_name


@everywhere()
async def test_the_server_knows_who_asks(world: World) -> None:
    seen: list[Request] = []

    def handle(request: Request) -> None:
        seen.append(request)
        request.reply(Empty())

    server, first = await world.pair(handle)
    second = await world.connect(server, hello=make_hello("worker", "worker-1", 9))
    for connection in (first, second):
        await connection.request(BenchBlockRequest(1), deadline_s=10)
    assert [request.peer.node for request in seen] == ["worker-0", "worker-1"]
    assert seen[0].connection_id != seen[1].connection_id
    assert "worker-1" in seen[1].peer_name
    await first.close()
    await until(lambda: world.disconnected == [seen[0].connection_id])


@everywhere()
async def test_bodies_go_both_ways_unchanged(world: World) -> None:
    _, connection = await world.pair(mirror)
    random = Random(1)
    for size in (0, 1, 4095, 65536, 1 << 20, 5_000_001):
        body = random.randbytes(size)
        reply = await connection.request(PUSH, [body[: size // 3], b"", body[size // 3 :]], deadline_s=30)
        assert bytes(reply.body) == body
        reply.release()


@everywhere()
async def test_arrays_are_sent_as_they_lie_in_memory(world: World) -> None:
    _, connection = await world.pair(mirror)
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    reply = await connection.request(PUSH, [array, np.empty((0, 3), np.float32)], deadline_s=10)
    assert bytes(reply.body) == array.tobytes()
    reply.release()
    with pytest.raises(TypeError):
        await connection.request(PUSH, [array[:, ::2]], deadline_s=10)


@everywhere()
async def test_a_reply_is_received_straight_into_the_callers_arrays(world: World) -> None:
    values = np.random.default_rng(1).random(300_000, np.float32)
    _, connection = await world.pair(lambda request: request.reply(PullReply(()), [values]))
    into = [np.zeros(7, np.float32), np.zeros(299_990, np.float32), np.zeros(3, np.float32)]
    reply = await connection.request(PULL, deadline_s=10, into=[memoryview(part) for part in into])
    assert reply.received_into
    assert np.array_equal(np.concatenate(into), values)
    one = np.zeros_like(values)
    reply = await connection.request(PULL, deadline_s=10, into=[memoryview(one)])
    assert np.array_equal(one, values)
    assert bytes(reply.body) == values.tobytes()
    assert world.transport.pool.statistics().allocations == 0


@everywhere()
async def test_a_reply_of_another_length_leaves_the_arrays_alone(world: World) -> None:
    _, connection = await world.pair(lambda request: request.reply(PullReply(()), [b"12345"]))
    into = bytearray(4)
    reply = await connection.request(PULL, deadline_s=10, into=[memoryview(into)])
    assert not reply.received_into
    assert bytes(reply.body) == b"12345"
    assert into == bytes(4)
    reply.release()


@everywhere()
async def test_an_error_is_that_requests_alone(world: World) -> None:
    def handle(request: Request) -> None:
        if isinstance(request.message, ShutdownRequest):
            request.fail(ErrorCode.STALE_EPOCH, "too old", {"routing": {"1": 2}})
        elif isinstance(request.message, PullRequest):
            raise ValueError("a mistake of ours")
        elif isinstance(request.message, PushRequest):
            raise ConfigurationError("no such thing")
        else:
            request.reply(Empty())

    _, connection = await world.pair(handle)
    with pytest.raises(RemoteError, match="too old") as caught:
        await connection.request(ShutdownRequest("x"), deadline_s=10)
    assert (caught.value.code, caught.value.details) == (ErrorCode.STALE_EPOCH, {"routing": {"1": 2}})
    with pytest.raises(RemoteError) as caught:
        await connection.request(PULL, deadline_s=10)
    assert caught.value.code == ErrorCode.INTERNAL
    text = "PullRequest failed: ValueError; the log of the process that answers says why"
    assert str(caught.value) == text, "what an unforeseen error says is not for others"
    with pytest.raises(RemoteError) as caught:
        await connection.request(PUSH, [b"body"], deadline_s=10)
    assert caught.value.code == ErrorCode.BAD_CONFIGURATION
    await connection.request(BenchBlockRequest(1), deadline_s=10)


@everywhere()
async def test_requests_are_answered_in_any_order(world: World) -> None:
    kept: list[Request] = []
    _, connection = await world.pair(kept.append)
    tasks = [
        asyncio.ensure_future(connection.request(PUSH, [bytes([number]) * 10_000], deadline_s=30))
        for number in range(200)
    ]
    await until(lambda: len(kept) == 200)
    Random(2).shuffle(kept)
    for request in kept:
        mirror(request)
    for number, task in enumerate(tasks):
        reply = await task
        assert bytes(reply.body) == bytes([number]) * 10_000
        reply.release()


@everywhere()
async def test_a_request_must_be_answered_exactly_once(world: World) -> None:
    def handle(request: Request) -> None:
        request.reply(Empty())
        with pytest.raises(RuntimeError, match="twice"):
            request.reply(Empty())
        with pytest.raises(RuntimeError, match="twice"):
            request.fail(1, "")

    _, connection = await world.pair(handle)
    await connection.request(BenchBlockRequest(1), [b"body"], deadline_s=10)


@everywhere()
async def test_no_reply_in_time_is_a_deadline_error(world: World) -> None:
    kept: list[Request] = []
    server, connection = await world.pair(kept.append)
    into = bytearray(100)
    with pytest.raises(DeadlineError, match="PullRequest"):
        await connection.request(PULL, deadline_s=0.05, into=[memoryview(into)])
    kept[0].reply(PullReply(()), [b"late" * 25])
    server.handler = lambda request: request.reply(Empty())
    await connection.request(BenchBlockRequest(1), deadline_s=10)
    assert into == bytes(100)


@everywhere()
async def test_the_server_sees_the_deadline(world: World) -> None:
    seen: list[float] = []

    def handle(request: Request) -> None:
        seen.append(request.deadline_s)
        request.reply(Empty())

    _, connection = await world.pair(handle)
    loop = asyncio.get_running_loop()
    await connection.request(BenchBlockRequest(1), [b"x"], deadline_s=1000)
    await connection.request(BenchBlockRequest(1), deadline_s=1000)
    assert all(loop.time() + 900 < deadline_s <= loop.time() + 1000.1 for deadline_s in seen)


@everywhere()
async def test_a_body_may_be_kept_beyond_the_reply(world: World) -> None:
    kept: list[tuple[memoryview, Any]] = []

    def handle(request: Request) -> None:
        request.lease.retain()
        kept.append((request.body, request.lease))
        request.reply(Empty())

    server, connection = await world.pair(handle)
    for number in range(3):
        await connection.request(BenchBlockRequest(number), [bytes([number]) * 5000], deadline_s=10)
    assert [bytes(body) for body, _ in kept] == [bytes([number]) * 5000 for number in range(3)]
    assert server.pool.statistics().outstanding_buffers == 3

    def release_all() -> None:
        for _, lease in kept:
            lease.release()

    thread = threading.Thread(target=release_all)
    thread.start()
    thread.join()
    assert server.pool.statistics().outstanding_buffers == 0


@everywhere()
async def test_on_sent_is_called_once_for_each_reply(world: World) -> None:
    sent: list[int] = []
    values = np.zeros(1 << 18, np.float32)

    def handle(request: Request) -> None:
        number = getattr(request.message, "shards", (0,))[0]
        request.reply(PullReply(()), [values], on_sent=lambda: sent.append(number))

    _, connection = await world.pair(handle)
    replies = await asyncio.gather(
        *(connection.request(PullRequest("job", {}, (number,)), deadline_s=30) for number in range(30))
    )
    for reply in replies:
        reply.release()
    await until(lambda: sorted(sent) == list(range(30)))


@everywhere()
async def test_on_sent_is_called_even_if_the_client_has_gone(world: World) -> None:
    kept: list[Request] = []
    sent: list[bool] = []
    _, connection = await world.pair(kept.append)
    task = asyncio.ensure_future(connection.request(PULL, deadline_s=60))
    await until(lambda: len(kept) == 1)
    await connection.close()
    with pytest.raises(UnreachableError):
        await task
    await until(lambda: bool(world.disconnected))
    kept[0].reply(PullReply(()), [b"x"], on_sent=lambda: sent.append(True))
    assert sent == [True]


@everywhere()
async def test_a_closed_connection_fails_what_waits_on_it(world: World) -> None:
    kept: list[Request] = []
    server, connection = await world.pair(kept.append, credit_bytes=10)
    tasks = [
        asyncio.ensure_future(connection.request(BenchBlockRequest(number), [bytes(10)], deadline_s=60))
        for number in range(5)
    ]
    await until(lambda: len(kept) == 1)
    await server.close()
    for task in tasks:
        with pytest.raises(UnreachableError):
            await task
    assert connection.closed
    with pytest.raises(UnreachableError):
        await connection.request(BenchBlockRequest(9), deadline_s=10)
    kept[0].fail(1, "too late")


@everywhere()
async def test_many_clients_many_requests(world: World) -> None:
    server = await world.serve(mirror)
    connections = [await world.connect(server) for _ in range(10)]
    random = Random(5)
    bodies = [random.randbytes(random.choice([0, 10, 3000, 70_000])) for _ in range(300)]

    async def one(number: int) -> None:
        reply = await connections[number % 10].request(PUSH, [bodies[number]], deadline_s=60)
        assert bytes(reply.body) == bodies[number]
        reply.release()

    await asyncio.gather(*(one(number) for number in range(300)))


@everywhere()
async def test_asynchronous_handlers(world: World) -> None:
    async def handle(request: Request) -> Any:
        await asyncio.sleep(0)
        if isinstance(request.message, StatusRequest):
            return StatusReply({"a": 1})
        if isinstance(request.message, PullRequest):
            return PullReply(()), [b"body"]
        if isinstance(request.message, PushRequest):
            request.reply(PushReply(()))
            return None
        raise RemoteError(ErrorCode.NOT_READY, "not yet", {"wait": 1})

    _, connection = await world.pair(async_handler(handle))
    assert (await connection.request(StatusRequest(), deadline_s=10)).message == StatusReply({"a": 1})
    reply = await connection.request(PULL, deadline_s=10)
    assert bytes(reply.body) == b"body"
    reply.release()
    await connection.request(PUSH, deadline_s=10)
    with pytest.raises(RemoteError, match="not yet") as caught:
        await connection.request(ShutdownRequest("x"), deadline_s=10)
    assert (caught.value.code, caught.value.details) == (ErrorCode.NOT_READY, {"wait": 1})


@everywhere()
async def test_a_one_way_body_is_received_where_the_server_wants_it(world: World) -> None:
    memory, handled = bytearray(100_000), list[tuple[int, int, int]]()

    def placing(request: Request) -> memoryview | None:
        message = request.message
        assert isinstance(message, BenchBlockRequest) and request.one_way and not len(request.body)
        return None if message.number % 2 else memoryview(memory)[10_000 : 10_000 + request.body_bytes]

    def handle(request: Request) -> None:
        assert isinstance(request.message, BenchBlockRequest)
        handled.append((request.message.number, request.body_bytes, len(request.body)))
        request.reply(Empty())

    _, connection = await world.pair(handle, placing=placing)
    body = Random(1).randbytes(80_000)
    await connection.send_one_way(BenchBlockRequest(0), [body[:30_000], body[30_000:]], deadline_s=10)
    await connection.send_one_way(BenchBlockRequest(1), [bytes(500)], deadline_s=10)
    (await connection.request(BenchBlockRequest(2), [bytes(700)], deadline_s=10)).release()
    assert handled == [(0, 80_000, 0), (1, 500, 500), (2, 700, 700)], "others use the buffers of the server"
    assert memory == bytes(10_000) + body + bytes(10_000)


@everywhere()
async def test_a_one_way_request_that_breaks_the_protocol_ends_the_connection(world: World) -> None:
    """No answer could say why."""

    def refuse(request: Request) -> None:
        raise ProtocolError("this is no block")

    for server in (await world.serve(placing=refuse), await world.serve(refuse)):
        connection, other = await world.connect(server), await world.connect(server)
        with suppress(UnreachableError):
            await connection.send_one_way(BenchBlockRequest(0), [bytes(500)], deadline_s=10)
        assert "this is no block" in await asyncio.wait_for(connection.wait_lost(), 10)
        assert not other.closed

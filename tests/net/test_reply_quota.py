"""Answers that nobody takes: honest peers wait for each other and are never cut, those who take nothing are."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from adamctl.errors import AdamctlError
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.reply_quota import ReplyQuota
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.codec import encode_request
from adamctl.wire.messages import PullReply, PullRequest, PushReply, PushRequest, StatusReply, StatusRequest
from tests.net.world import until

MIB = 1 << 20
PULL = PullRequest("job", {}, (1,))
PUSH = PushRequest("job", {}, 0.1, 1, 1, (), ())
ANSWER = bytes(4 * MIB)


class Peer:
    """A connection as the quota sees it."""

    def __init__(self, outgoing_bytes: int, kept_pace_s: float) -> None:
        self.outgoing_bytes, self.kept_pace_s = outgoing_bytes, kept_pace_s
        self.closing, self.write_stalled = False, True
        self.advanced = 0

    def advance(self) -> None:
        self.advanced += 1

    def end(self, reason: AdamctlError, *, at_once: bool = False) -> None:
        self.closing = True


async def test_who_does_not_keep_pace_is_cut_and_no_more_than_it_takes() -> None:
    quota = ReplyQuota(ServerLimits(reply_memory_bytes_max=100, reply_patience_s=2.0))
    slow, slower, steady = Peer(40, 5.0), Peer(50, 5.0), Peer(60, 9.0)
    peers = [slow, slower, steady]
    quota.count(99, peers)
    quota.press(peers, 10.0)
    assert not any(peer.closing for peer in peers), "there is room"
    quota.count(51, peers)
    quota.press(peers, 6.9)
    assert not any(peer.closing for peer in peers), "not slow for long enough"
    quota.press(peers, 10.0)
    assert [peer.closing for peer in peers] == [True, True, False]


async def test_those_who_wait_for_room_go_on_when_there_is_some() -> None:
    quota = ReplyQuota(ServerLimits(reply_memory_bytes_max=100))
    waiting, gone, other = Peer(0, 0.0), Peer(0, 0.0), Peer(150, 0.0)
    assert quota.has_room(waiting)
    quota.count(150, [other])
    assert not quota.has_room(waiting) and not quota.has_room(gone)
    quota.forget(gone)
    quota.count(-20, [other])
    await asyncio.sleep(0)
    assert waiting.advanced == 0
    quota.count(-40, [other])
    await asyncio.sleep(0)
    assert (waiting.advanced, gone.advanced) == (1, 0)


async def test_many_answers_at_once_to_one_peer_are_its_end() -> None:
    quota = ReplyQuota(ServerLimits(reply_memory_bytes_max=100, reply_bytes_max=30))
    modest, greedy = Peer(60, 0.0), Peer(150, 0.0)
    quota.count(210, [modest, greedy])
    assert greedy.closing and not modest.closing


def handle(request: Request) -> None:
    if isinstance(request.message, StatusRequest):
        request.reply(StatusReply({"x": "y" * 60_000}))
    elif isinstance(request.message, PushRequest):
        request.reply(PushReply(()))
    else:
        request.reply(PullReply(()), [ANSWER])


async def test_honest_clients_are_served_beside_some_that_never_read() -> None:
    limits = ServerLimits(
        reply_bytes_max=8 * MIB,
        reply_memory_bytes_max=32 * MIB,
        reply_patience_s=0.2,
        write_stall_timeout_s=1.0,
    )
    server = await StreamTransport().serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0"), handle, limits=limits)
    host, _, port = server.addresses[0].removeprefix("tcp://").rpartition(":")
    hostile = []
    for number in range(8):
        peer = socket.create_connection((host, int(port)))
        peer.setblocking(False)
        peer.sendall(encode_request(make_hello("worker", f"evil-{number}"), 1))
        for request_id in range(2, 30):
            with suppress(BlockingIOError):
                peer.sendall(encode_request(PULL if number % 2 else StatusRequest(), request_id))
        hostile.append(peer)
    transport = StreamTransport()
    clients = [
        await transport.connect(server.addresses[0], make_hello("worker", f"w{number}"), deadline_s=30)
        for number in range(8)
    ]
    most_bytes = 0

    async def work(number: int) -> None:
        nonlocal most_bytes
        into = bytearray(len(ANSWER))
        for _ in range(20):
            await clients[number].request(PULL, deadline_s=60, into=[memoryview(into)])
            await clients[number].request(PUSH, [ANSWER[:MIB]], deadline_s=60)
            most_bytes = max(most_bytes, server.replies.used_bytes)

    await asyncio.gather(*(work(number) for number in range(8)))
    # Beyond the quota only by the answers to what was read before: one for each connection.
    assert most_bytes <= limits.reply_memory_bytes_max + 16 * len(ANSWER)
    assert all(not client.closed for client in clients)
    await until(lambda: server.replies.used_bytes == 0, 5000)
    for client in clients:
        await client.close()
    for peer in hostile:
        peer.close()
    await until(lambda: server.connection_count == 0)
    await server.close()
    assert server.pool.statistics().outstanding_bytes == 0


async def test_a_peer_that_is_always_behind_but_reads_is_not_cut() -> None:
    """A steady reader with more to come is at no moment without something to take."""
    limits = ServerLimits(write_stall_timeout_s=0.3)
    server = await StreamTransport().serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0"), handle, limits=limits)
    client = await StreamTransport().connect(server.addresses[0], make_hello("worker", "w"), deadline_s=30)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 1.5

    async def pull() -> None:
        into = bytearray(len(ANSWER))
        while loop.time() < until_s:
            await client.request(PULL, deadline_s=60, into=[memoryview(into)])

    await asyncio.gather(*(pull() for _ in range(8)))
    assert not client.closed
    await client.close()
    await server.close()

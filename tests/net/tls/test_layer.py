"""TLS below the frame protocol: what waits stays plain, nothing waits for ever, certificates end connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adamctl.errors import HandshakeError, UnreachableError
from adamctl.net.connection import StreamConnection
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.net.tls.engine import PIECE_BYTES, RECEIVED_BYTES
from adamctl.net.tls.layer import RECORD_BYTES
from adamctl.net.transport import Request
from adamctl.wire.messages import BenchBlockRequest, Empty
from tests.net.tls.certificates import Authority, lasting
from tests.net.tls.layer_ends import Below, Frames, hand, joined, layer
from tests.net.world import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_what_the_kernel_does_not_take_stays_plain_but_for_one_piece(authority: Authority) -> None:
    _, frames, below, server, received, _ = joined(authority, room_bytes=100_000)
    body = Random(2).randbytes(3_000_000)
    sent: list[str] = []
    frames.send(b"head", [memoryview(body)], len(body), on_sent=lambda: sent.append("all"))
    assert frames.write_stalled and not sent and below.room_bytes == 0
    assert len(below.waiting) <= PIECE_BYTES + 1024
    total = len(body) + 4
    taken = frames.taken_bytes
    assert 0 < taken <= 100_000
    while not sent:  # the kernel takes what it has been given, and a little of what comes next
        below.take(len(below.waiting) + 1000)
        assert len(below.waiting) <= PIECE_BYTES + 1024
        assert taken <= frames.taken_bytes <= total
        taken = frames.taken_bytes
        hand(below, server)
    assert frames.taken_bytes == total and not frames.write_stalled and not below.waiting
    hand(below, server)
    assert received.received == b"head" + body


async def test_on_sent_comes_when_the_kernel_has_taken_the_last_byte(authority: Authority) -> None:
    _, frames, below, *_ = joined(authority, room_bytes=10)
    sent: list[int] = []
    for number in range(3):
        frames.send(b"a frame", on_sent=lambda number=number: sent.append(number))
    waiting = frames.send(b"later")
    assert not sent
    assert frames.withdraw(waiting)  # it has not been handed over
    below.take(5)
    assert not sent
    below.take(1 << 20)
    assert sent == [0, 1, 2]


async def test_small_frames_share_a_record_and_long_ones_are_not_copied(authority: Authority) -> None:
    client, _, below, *_ = joined(authority)
    client.writelines([b"x" * 40, b"y" * 100])
    assert len(below.taken) == 140 + 22
    below.taken.clear()
    client.writelines([b"x" * 40, memoryview(bytearray(RECORD_BYTES * 3))])
    assert len(below.taken) == RECORD_BYTES * 3 + 40 + 22 * 4  # four records, none of them short but the last
    whole = memoryview(bytearray(PIECE_BYTES))
    client._plain.append(whole)
    assert client._next_piece() is whole


async def test_an_end_that_reads_nothing_holds_no_more_than_was_received(authority: Authority) -> None:
    client, _, near, server, received, far = joined(authority)
    client.write(bytes(200_000))
    server.pause_reading()
    assert far.calls == ["pause"]
    hand(near, server)
    assert not received.received and server._engine.undecrypted_bytes <= RECEIVED_BYTES
    server.resume_reading()
    await asyncio.sleep(0)
    assert len(received.received) == 200_000


async def test_what_was_written_before_the_handshake_follows_it(authority: Authority) -> None:
    near, far = Below(1 << 30), Below(1 << 30)
    client, frames = layer(authority.credentials("worker", "w"), server=False, below=near)
    server, received = layer(authority.credentials("ps", "s"), server=True, below=far)
    frames.send(b"early")
    assert frames.write_stalled and b"early" not in near.taken
    for _ in range(3):
        hand(near, server)
        hand(far, client)
    assert received.received == b"early" and not frames.write_stalled


async def test_an_end_is_told_from_a_line_that_was_cut(authority: Authority) -> None:
    client, _, near, server, received, far = joined(authority)
    client.write(b"last words")
    client.close()
    hand(near, server)
    assert received.received == b"last words" and near.calls == far.calls == ["close"]


class Answering(Frames):
    """Stops reading at the first bytes, as at the last request that is allowed, and answers at once."""

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        assert self._transport is not None
        self._transport.pause_reading()
        self._transport.write(b"an answer")


async def test_a_broken_record_behind_good_ones_ends_the_connection_although_nothing_is_read(
    authority: Authority,
) -> None:
    """What was sent well is handled; answers to it fail nowhere, whether they come at once or later."""
    for kind in (Frames, Answering):
        near, far = Below(1 << 30), Below(1 << 30)
        client, _ = layer(authority.credentials("worker", "w"), server=False, below=near)
        server, frames = layer(authority.credentials("ps", "s"), server=True, below=far, kind=kind)
        for _ in range(3):
            hand(near, server)
            hand(far, client)
        client.write(b"requests")
        near.taken += b"\x17\x03\x03\x00\x20" + bytes(32)  # a record that nobody has encrypted
        hand(near, server)
        await asyncio.sleep(0)
        assert frames.received == b"requests" and frames.closing and server.is_closing()
        assert "it was changed on the way" in str(frames.reason)
        server.write(b"a later answer")
        frames.send(b"another")
        await asyncio.sleep(0.01)


async def test_a_stream_that_its_peer_has_ended_is_still_written_to(authority: Authority) -> None:
    client, _, near, server, frames, far = joined(authority)
    server.pause_reading()
    client.write(b"the last request")
    client.close()
    hand(near, server)
    server.write(b"its answer")
    assert not server.is_closing() and far.taken and not frames.closing


async def test_a_handshake_that_never_ends_is_bounded_in_time_and_number(authority: Authority) -> None:
    limits = ServerLimits(handshakes_max=3, hello_timeout_s=0.2)
    transport = StreamTransport(tls=authority.credentials("ps", "ps-0"))
    server = await transport.serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0"), lambda request: None, limits=limits)
    port = int(server.addresses[0].rpartition(":")[2])
    half = ssl.MemoryBIO(), ssl.MemoryBIO()
    begun = authority.credentials("worker", "w").current.client.wrap_bio(*half)
    with pytest.raises(ssl.SSLWantReadError):
        begun.do_handshake()
    first_flight = half[1].read()
    peers = []
    for number in range(5):
        peers.append(socket.create_connection(("127.0.0.1", port)))
        peers[-1].setblocking(False)
        peers[-1].sendall(first_flight[: (0, 1, 40, len(first_flight) - 1, len(first_flight))[number]])
    await until(lambda: len(server._newcomers) == 3)  # two had to go for the last two
    await until(lambda: len(server._newcomers) == 0)
    assert server.connection_count == 0
    for peer in peers:
        peer.close()
    await server.close()


def test_a_connection_ends_after_its_certificate_and_the_next_has_a_new_one(authority: Authority) -> None:
    """In virtual time: an hour's certificate, renewed after a while; nobody is cut before its end."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        network = MemoryNetwork(Random(3), tls=lasting(authority, 4600.0))  # an hour from now
        server = await network.serve(
            ["memory://ps-0"], make_hello("ps", "ps-0"), lambda request: request.reply(Empty())
        )
        hello = make_hello("worker", "w-1")
        connections = [await network.connect("memory://ps-0", hello, deadline_s=5) for _ in range(8)]
        await asyncio.sleep(1800)
        for connection in connections:
            await connection.request(BenchBlockRequest(1), deadline_s=5)
        authority.write("worker", "w-1", lifetime_s=86400.0)
        authority.write("ps", "ps-0", lifetime_s=86400.0)
        ends = []

        async def note_end(connection: StreamConnection) -> None:
            assert "has expired" in await connection.wait_lost()
            ends.append(loop.time())

        await asyncio.gather(*map(note_end, connections))
        assert 3590 < min(ends) <= max(ends) < 3600 + 61 and len(set(ends)) > 4  # not all at once
        began_s = loop.time()
        again = await network.connect("memory://ps-0", hello, deadline_s=5)
        await again.request(BenchBlockRequest(1), deadline_s=5)
        assert loop.time() - began_s < 1
        await asyncio.sleep(3600 * 5)
        assert not again.closed
        await again.close()
        await server.close()

    run_virtual(main())


def test_connections_end_once_their_authority_is_taken_away(authority: Authority, tmp_path: Path) -> None:
    """Of a certificate that was stolen, too: who holds it keeps no connection, and gets no new one."""
    new = Authority(tmp_path / "new")
    both = authority.pair.certificate + new.pair.certificate

    async def main() -> None:
        loop = asyncio.get_running_loop()
        network = MemoryNetwork(Random(6), tls=lasting(authority, 90000.0))
        server = await network.serve(
            ["memory://ps-0"], make_hello("ps", "ps-0"), lambda request: request.reply(Empty())
        )
        hello = make_hello("worker", "w-1")
        connections = [await network.connect("memory://ps-0", hello, deadline_s=5) for _ in range(8)]
        new.folder = authority.folder
        new.write("ps", "ps-0", trusts=both)
        await asyncio.sleep(600)
        assert not any(connection.closed for connection in connections)  # one more is trusted than before
        new.write("ps", "ps-0")
        began_s, ends = loop.time(), []

        async def note_end(connection: StreamConnection) -> None:
            await connection.wait_lost()
            ends.append(loop.time() - began_s)

        await asyncio.gather(*map(note_end, connections))
        assert max(ends) < 65 and len(set(ends)) > 4  # not all at once
        with pytest.raises((HandshakeError, UnreachableError)):
            await network.connect("memory://ps-0", hello, deadline_s=5)
        await server.close()

    run_virtual(main())


def test_a_client_with_a_request_open_waits_for_its_answer(authority: Authority) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        requests: list[Request] = []
        network = MemoryNetwork(Random(4), tls=lasting(authority, 4600.0))
        server = await network.serve(["memory://ps-0"], make_hello("ps", "ps-0"), requests.append)
        connection = await network.connect("memory://ps-0", make_hello("worker", "w-1"), deadline_s=5)
        # The server would end it in the second half of the grace, so the client's own time comes first.
        until_s = (
            connection._protocol._transport._until_s
            - connection._protocol._transport._credentials.clock()
            + loop.time()
        )
        await asyncio.sleep(until_s - loop.time() - 1)
        asked = asyncio.ensure_future(connection.request(BenchBlockRequest(1), deadline_s=100))
        await asyncio.sleep(3)
        assert not connection.closed
        requests[0].reply(Empty())
        await asked
        await connection.wait_lost()
        assert loop.time() - until_s < 3
        await server.close()

    run_virtual(main())


def test_the_same_seed_gives_the_same_run(authority: Authority) -> None:
    def trace() -> list[Any]:
        async def main() -> list[Any]:
            network = MemoryNetwork(Random(5), tls=authority.credentials_of, keep_trace=True)
            server = await network.serve(
                ["memory://ps-0"], make_hello("ps", "ps-0"), lambda request: request.reply(Empty())
            )
            connection = await network.connect("memory://ps-0", make_hello("worker", "w-1"), deadline_s=5)
            for number in range(5):
                await connection.request(BenchBlockRequest(number), [bytes(number * 100_000)], deadline_s=5)
            await connection.close()
            await server.close()
            return network.trace

        return run_virtual(main())

    assert trace() == trace()


def test_a_partition_ends_what_it_has_swallowed_with_a_typed_error(authority: Authority) -> None:
    async def main() -> None:
        network = MemoryNetwork(Random(6), tls=authority.credentials_of)
        server = await network.serve(
            ["memory://ps-0"], make_hello("ps", "ps-0"), lambda request: request.reply(Empty())
        )
        connection = await network.connect("memory://ps-0", make_hello("worker", "w-1"), deadline_s=5)
        network.partition("w-1", "ps-0")
        with pytest.raises(UnreachableError):
            await connection.request(BenchBlockRequest(1), deadline_s=1)
        network.heal()
        with pytest.raises(UnreachableError):
            for number in range(3):
                await connection.request(BenchBlockRequest(number), deadline_s=1)
        assert "changed on the way" in await connection.wait_lost()
        await server.close()

    run_virtual(main())

"""What only streams have: bytes that break off, peers that say nothing."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import ConfigurationError, DeadlineError, ProtocolError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ClientLimits, ServerLimits
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire.codec import FrameHead, decode_message, encode_reply, encode_request, parse_head
from adamctl.wire.constants import FRAME_HEADER, ErrorCode, Flag, Opcode
from adamctl.wire.messages import (
    BenchBlockRequest,
    CreditGrant,
    Empty,
    ErrorReply,
    Hello,
    HelloReply,
    PullReply,
    PullRequest,
    StatusRequest,
)
from tests.net.world import World, everywhere, until
from tests.wire.frames import raw_frame

STREAMS = ("unix", "unix-uvloop", "tcp", "tcp-uvloop")
HELLO = encode_request(make_hello("worker", "raw"), 1)


async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix"):
        return await asyncio.open_unix_connection(address.removeprefix("unix://"))
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def dial_and_greet(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await dial(address)
    writer.write(HELLO)
    assert isinstance((await read_reply(reader))[1], HelloReply)
    return reader, writer


async def read_reply(reader: asyncio.StreamReader) -> tuple[Any, Any]:
    head = parse_head(await reader.readexactly(36))
    header = await reader.readexactly(head.header_bytes)
    await reader.readexactly(head.body_bytes)
    return head, decode_message(head.opcode, head.flags, header)


@everywhere(*STREAMS)
async def test_garbage_is_answered_with_a_reason_and_cut(world: World) -> None:
    server = await world.serve()
    for garbage in (b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n", raw_frame(opcode=999), raw_frame(flags=64)):
        reader, writer = await dial(server.addresses[0])
        writer.write(garbage)
        head, error = await read_reply(reader)
        assert (head.request_id, head.flags) == (0, Flag.REPLY | Flag.ERROR)
        assert isinstance(error, ErrorReply)
        assert error.code == ErrorCode.BAD_MESSAGE
        assert await reader.read() == b""
        writer.close()
    assert server.connection_count == 0


@everywhere(*STREAMS)
async def test_a_later_versions_request_is_refused_and_the_connection_goes_on(world: World) -> None:
    """With a body that would be placed, arrive in pieces, or need credit; also one-way; also of the longest body."""
    seen: list[str] = []

    def look(request: Request) -> None:
        seen.append(type(request.message).__name__)

    server = await world.serve(arriving=look, placing=look, credit_bytes=1 << 20)
    reader, writer = await dial_and_greet(server.addresses[0])
    for number, body_bytes in enumerate((0, 5, 4 << 20, 32 << 20), 2):
        writer.write(raw_frame(opcode=999, request_id=number, header=b"later", body=bytes(body_bytes)))
        magic, *fields = FRAME_HEADER.unpack((await reader.readexactly(36))[:32])
        head = FrameHead(*fields)
        error = decode_message(head.opcode, head.flags, await reader.readexactly(head.header_bytes))
        assert (magic, head.opcode, head.request_id, head.body_bytes) == (b"ADMC", 999, number, 0)
        assert isinstance(error, ErrorReply) and error.code == ErrorCode.UNKNOWN_OPCODE
        assert "opcode 999; update the older side" in error.message
    writer.write(raw_frame(opcode=999, request_id=8, flags=Flag.ONE_WAY, body=bytes(1 << 20)))
    head, credit = await read_reply(reader)
    assert isinstance(credit, CreditGrant) and credit.released_bytes == 1 << 20
    writer.write(raw_frame(request_id=9))
    head, answer = await read_reply(reader)
    assert (head.request_id, answer) == (9, Empty()) and not seen
    assert server.traffic.refusals == {ErrorCode.UNKNOWN_OPCODE: 5}
    writer.write(raw_frame(opcode=999, request_id=10, flags=Flag.REPLY))
    assert "unknown opcode 999" in (await read_reply(reader))[1].message and await reader.read() == b""
    writer.close()


@everywhere(*STREAMS)
async def test_what_is_not_hello_is_refused_before_it_costs_memory(world: World) -> None:
    server = await world.serve()
    for first in (raw_frame(body_bytes=32 << 20), raw_frame(), HELLO + HELLO):
        reader, writer = await dial(server.addresses[0])
        writer.write(first)
        _, message = await read_reply(reader)
        if first.startswith(HELLO):
            assert isinstance(message, HelloReply)
            _, message = await read_reply(reader)
        assert "HELLO" in message.message
        writer.close()
    assert server.pool.statistics().allocations == 0


@everywhere(*STREAMS)
async def test_silence_before_hello_is_cut(world: World) -> None:
    server = await world.serve(hello_timeout_s=0.1)
    reader, writer = await dial(server.addresses[0])
    writer.write(HELLO[:20])
    assert await reader.read() == b""
    writer.close()


@everywhere(*STREAMS)
async def test_too_many_who_say_nothing_push_the_oldest_out(world: World) -> None:
    server = await world.serve(handshakes_max=3)
    peers = [await dial(server.addresses[0])]
    await asyncio.sleep(0.05)
    peers += [await dial(server.addresses[0]) for _ in range(3)]
    assert await peers[0][0].read() == b""
    peers[3][1].write(HELLO)
    _, reply = await read_reply(peers[3][0])
    assert isinstance(reply, HelloReply)
    for _, writer in peers:
        writer.close()


@everywhere(*STREAMS)
async def test_a_connection_that_ends_in_mid_frame_gives_its_buffer_back(world: World) -> None:
    seen: list[Request] = []
    server = await world.serve(seen.append)
    _, writer = await dial_and_greet(server.addresses[0])
    writer.write(raw_frame(body_bytes=1 << 20) + bytes(1000))
    await until(lambda: server.pool.statistics().outstanding_buffers == 1)
    writer.close()
    await until(lambda: server.pool.statistics().outstanding_buffers == 0)
    assert not seen
    await until(lambda: bool(world.disconnected))


@everywhere(*STREAMS)
async def test_a_frame_that_does_not_get_on_is_cut(world: World) -> None:
    server = await world.serve(frame_timeout_s=0.1)
    reader, writer = await dial_and_greet(server.addresses[0])
    writer.write(raw_frame(body_bytes=1 << 20) + bytes(1000))
    assert await reader.read() == b""
    writer.close()


@everywhere(*STREAMS)
async def test_a_peer_that_takes_no_answers_is_not_read_and_then_cut(world: World) -> None:
    asked = 0
    body = bytes(1 << 20)

    def handle(request: Request) -> None:
        nonlocal asked
        asked += 1
        request.reply(PullReply(()), [body])

    server = await world.serve(handle, requests_per_connection_max=5, write_stall_timeout_s=0.2)
    _, writer = await dial(server.addresses[0])
    writer.write(HELLO + encode_request(PullRequest("j", {}, (1,)), 2) * 500)
    await until(lambda: bool(world.disconnected), 5000)
    assert asked < 100
    writer.close()


@everywhere(*STREAMS)
async def test_a_request_whose_time_is_over_when_its_turn_comes_is_not_served(world: World) -> None:
    kept: list[Request] = []
    server = await world.serve(kept.append, requests_per_connection_max=1)
    reader, writer = await dial(server.addresses[0])
    late = encode_request(BenchBlockRequest(2), 3, deadline_s=0.01)
    writer.write(HELLO + encode_request(BenchBlockRequest(1), 2) + late)
    await until(lambda: len(kept) == 1)
    await asyncio.sleep(0.05)
    kept[0].reply(Empty())
    assert isinstance((await read_reply(reader))[1], HelloReply)
    assert (await read_reply(reader))[1] == Empty()
    _, error = await read_reply(reader)
    assert error.code == ErrorCode.DEADLINE_PASSED
    assert len(kept) == 1
    writer.close()


@everywhere(*STREAMS)
async def test_beyond_its_credit_a_client_is_not_read(world: World) -> None:
    kept: list[Request] = []
    server = await world.serve(kept.append, credit_bytes=100_000)
    _, writer = await dial_and_greet(server.addresses[0])
    writer.write((encode_request(BenchBlockRequest(1), 2, body_bytes=40_000) + bytes(40_000)) * 20)
    await until(lambda: len(kept) == 2)
    await asyncio.sleep(0.05)
    assert len(kept) == 2
    served = 0
    while served < 20:
        await until(lambda: bool(kept))
        kept.pop(0).reply(Empty())
        served += 1
    writer.close()


class FalseServer:
    """Answers HELLO rightly, then sends whatever it is given, and if asked to, ends the connection after that."""

    def __init__(self, folder: Path, then: bytes, hello: bytes | None = None, *, ends: bool = False) -> None:
        self.path = str(folder / "false.sock")
        self._then = then
        self._hello = hello
        self._ends = ends

    async def __aenter__(self) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head, hello = await read_reply(reader)
            assert isinstance(hello, Hello)
            reply = HelloReply(1, (), "ps", "false", 0, 1000)
            writer.write(encode_reply(Opcode.HELLO, head.request_id, reply) if self._hello is None else self._hello)
            if self._then:
                await reader.readexactly(36)
                writer.write(self._then)
                await writer.drain()
            if not self._ends:
                await reader.read()
            writer.close()

        self._server = await asyncio.start_unix_server(serve, self.path)
        return f"unix://{self.path}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [
        b"x" * 100,
        encode_request(StatusRequest(), 0),
        raw_frame(body=b"x"),
        encode_reply(Opcode.BENCH_BLOCK, 99, Empty()),
        encode_reply(Opcode.NODE_LEAVE, 2, Empty()),
        raw_frame(opcode=Opcode.CREDIT, flags=Flag.ONE_WAY, header=b"\x91\xcd\x10\x00"),
        raw_frame(flags=Flag.REPLY | Flag.ERROR, request_id=2, header=b"\x90"),
    ],
    ids=["garbage", "request", "body", "unknown_id", "wrong_opcode", "too_much_credit", "unreadable"],
)
async def test_a_server_that_breaks_the_protocol_is_left(tmp_path: Path, answer: bytes) -> None:
    async with FalseServer(tmp_path, answer) as address:
        connection = await StreamTransport().connect(address, make_hello("worker", "w"), deadline_s=10)
        with pytest.raises(ProtocolError):
            await connection.request(BenchBlockRequest(1), deadline_s=10)
        assert connection.closed
        with pytest.raises(ProtocolError):
            await connection.request(BenchBlockRequest(1), deadline_s=10)
        await connection.close()


async def test_a_server_that_ends_in_mid_reply_is_unreachable(tmp_path: Path) -> None:
    half = encode_reply(Opcode.PS_PULL, 2, PullReply(()), 1 << 20) + bytes(1 << 19)
    async with FalseServer(tmp_path, half, ends=True) as address:
        transport = StreamTransport()
        connection = await transport.connect(address, make_hello("worker", "w"), deadline_s=10)
        with pytest.raises(UnreachableError):
            await connection.request(PullRequest("j", {}, ()), deadline_s=10)
        await connection.close()
        assert transport.pool.statistics().outstanding_bytes == 0


async def test_a_connection_that_is_cut_in_mid_reply_ends_on_both_sides(tmp_path: Path) -> None:
    server = await StreamTransport().serve(
        [f"unix://{tmp_path}/a.sock"],
        make_hello("ps", "a"),
        lambda request: request.reply(PullReply(()), [bytes(1 << 22)]),
    )
    transport = StreamTransport()
    connection = await transport.connect(server.addresses[0], make_hello("worker", "w"), deadline_s=10)
    task = asyncio.ensure_future(connection.request(PullRequest("j", {}, ()), deadline_s=10))
    await until(lambda: bool(connection._protocol.decoder.mid_frame or task.done()))
    next(iter(server._connections)).end(UnreachableError("cut by the test"), at_once=True)
    with suppress(UnreachableError):
        (await task).release()  # all of it was under way already
    await until(lambda: connection.closed)
    await connection.close()
    await server.close()
    assert transport.pool.statistics().outstanding_bytes == 0


async def test_who_accepts_and_says_nothing_is_a_deadline_error(tmp_path: Path) -> None:
    async with FalseServer(tmp_path, b"", hello=b"") as address:
        with pytest.raises(DeadlineError):
            await StreamTransport().connect(address, make_hello("worker", "w"), deadline_s=0.1)


async def test_giving_up_while_the_body_is_being_sent_closes_the_connection(tmp_path: Path) -> None:
    """Else the rest would be sent after the caller has changed it, and a torn push could be applied."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{tmp_path}/slow.sock")
    listener.listen()
    listener.setblocking(False)
    loop = asyncio.get_running_loop()

    async def greet() -> socket.socket:
        peer, _ = await loop.sock_accept(listener)
        peer.setblocking(False)
        await loop.sock_recv(peer, 1000)
        await loop.sock_sendall(peer, encode_reply(Opcode.HELLO, 1, HelloReply(1, (), "ps", "slow", 0, 64 << 20)))
        return peer

    task = asyncio.ensure_future(greet())
    connection = await StreamTransport().connect(f"unix://{tmp_path}/slow.sock", make_hello("w", "w"), deadline_s=10)
    peer = await task
    with pytest.raises(DeadlineError):
        await connection.request(BenchBlockRequest(1), [bytes(16 << 20)], deadline_s=0.1)
    assert connection.closed
    peer.close()
    listener.close()
    await connection.close()


async def test_what_has_not_begun_to_leave_is_withdrawn(tmp_path: Path) -> None:
    server = await StreamTransport().serve(
        [f"unix://{tmp_path}/a.sock"], make_hello("ps", "a"), lambda request: request.reply(Empty())
    )
    connection = await StreamTransport().connect(server.addresses[0], make_hello("worker", "w"), deadline_s=10)
    first = asyncio.ensure_future(connection.request(BenchBlockRequest(1), [bytes(16 << 20)], deadline_s=10))
    second = asyncio.ensure_future(connection.request(BenchBlockRequest(2), [bytes(16 << 20)], deadline_s=10))
    await asyncio.sleep(0)
    second.cancel()
    await first
    assert not connection.closed
    assert connection.in_flight_bytes == 0
    await connection.close()
    await server.close()


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="longest body"):
        ServerLimits(memory_bytes_max=1 << 20)
    with pytest.raises(ConfigurationError, match="credit_bytes"):
        ServerLimits(credit_bytes=0)
    assert ClientLimits().memory_bytes_max == 1 << 30

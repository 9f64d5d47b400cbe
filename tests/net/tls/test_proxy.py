"""Somebody in between, who records and changes bytes: sees no token and no frame, and changes nothing unnoticed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from adamctl.errors import AdamctlError, UnreachableError
from adamctl.net.connection import StreamConnection
from adamctl.net.handshake import make_hello
from adamctl.net.server import StreamServer
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.credentials import Credentials
from adamctl.net.transport import Request
from adamctl.wire.constants import MAGIC
from adamctl.wire.messages import BenchBlockRequest, Empty
from tests.net.tls.certificates import Authority

TOKEN = "the-cluster's-own-token-of-32-characters"
BODY = hashlib.sha256(b"gradients").digest() * 2000


class Proxy:
    """Passes on what comes, with one bit changed at a place in one direction; keeps everything that it has seen."""

    def __init__(self) -> None:
        self.seen = [bytearray(), bytearray()]  # from the client, from the server
        self.flip: tuple[int, int, int] | None = None  # direction, byte of its stream, bit
        self.flipped = False
        self._tasks: list[asyncio.Task[None]] = []

    async def listen(self, target: str) -> str:
        host, _, port = target.removeprefix("tcp://").rpartition(":")

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(self._pass(0, reader, far_writer), self._pass(1, far_reader, writer))

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _pass(self, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                begin = len(self.seen[way])
                self.seen[way] += piece
                changed = bytearray(piece)
                if self.flip is not None and self.flip[0] == way and begin <= self.flip[1] < begin + len(piece):
                    changed[self.flip[1] - begin] ^= 1 << self.flip[2]
                    self.flipped = True
                writer.write(bytes(changed))
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[Credentials, Credentials]:
    authority = Authority(tmp_path)
    return authority.credentials("ps", "ps-0"), authority.credentials("worker", "w-1")


@asynccontextmanager
async def between(server_tls: Credentials, bodies: list[bytes]) -> AsyncIterator[tuple[Proxy, str, StreamServer]]:
    def handle(request: Request) -> None:
        bodies.append(bytes(request.body))
        request.reply(Empty())

    server = await StreamTransport(tls=server_tls).serve(
        ["tcp://127.0.0.1:0"], make_hello("ps", "ps-0", 1, TOKEN), handle
    )
    proxy = Proxy()
    address = await proxy.listen(server.addresses[0])
    yield proxy, address, server
    await server.close()
    await proxy.close()


async def talk(address: str, tls: Credentials, deadline_s: float = 20.0) -> StreamConnection:
    hello = make_hello("worker", "w-1", 1, TOKEN)
    connection = await StreamTransport(tls=tls).connect(address, hello, deadline_s=deadline_s)
    for number in range(3):
        await connection.request(BenchBlockRequest(number), [BODY], deadline_s=deadline_s)
    return connection


async def test_it_sees_neither_token_nor_frame_nor_name(certificates: tuple[Credentials, Credentials]) -> None:
    bodies: list[bytes] = []
    async with between(certificates[0], bodies) as (proxy, address, _):
        connection = await talk(address, certificates[1])
        await connection.close()
    assert bodies == [BODY] * 3
    for seen in proxy.seen:
        assert len(seen) > 500
        for secret in (TOKEN.encode(), MAGIC, b"w-1", b"ps-0", b"nord", BODY[:16]):
            assert secret not in seen, secret
    assert len(proxy.seen[0]) > 3 * len(BODY)


def legacy_versions(stream: bytes) -> set[int]:
    """Returns where records that are not encrypted yet name a version: TLS 1.3 ignores it (RFC 8446, 5.1)."""
    found, place = set(), 0
    while stream[place : place + 1] in (b"\x16", b"\x14"):
        found |= {place + 1, place + 2}
        place += 5 + int.from_bytes(stream[place + 3 : place + 5], "big")
    return found


@pytest.mark.parametrize("places_by_chance", [5, pytest.param(300, marks=pytest.mark.slow)])
async def test_every_bit_that_it_changes_ends_the_connection(
    certificates: tuple[Credentials, Credentials], places_by_chance: int
) -> None:
    """At places of both directions by chance and at each of the first: the ends notice, and no changed byte is used."""
    async with between(certificates[0], []) as (proxy, address, _):
        await (await talk(address, certificates[1])).close()
        sizes = [len(seen) for seen in proxy.seen]
        meaningless = [legacy_versions(bytes(seen)) for seen in proxy.seen]
    random = Random(11)
    places = [(way, place, random.randrange(8)) for way in (0, 1) for place in (0, 3, 9, 80)]
    places += [
        (way, random.randrange(sizes[way] - 200), random.randrange(8))
        for way in (0, 1)
        for _ in range(places_by_chance)
    ]
    for flip in places:
        if flip[1] in meaningless[flip[0]]:
            continue
        bodies: list[bytes] = []
        async with between(certificates[0], bodies) as (proxy, address, server):
            proxy.flip = flip
            try:
                connection = await talk(address, certificates[1], 3.0)
            except AdamctlError as error:
                assert isinstance(error, UnreachableError) or "TLS" in str(error) or "refused" in str(error), flip
            else:
                # It came after what was needed: the very next record of that way is refused.
                with pytest.raises(AdamctlError):
                    for number in range(3):
                        await connection.request(BenchBlockRequest(number), [BODY], deadline_s=1.0)
                await connection.close()
            assert proxy.flipped, flip
            assert all(body == BODY for body in bodies), flip
            for _ in range(400):
                if not server.connection_count:
                    break
                await asyncio.sleep(0.005)
            assert server.connection_count == 0, flip

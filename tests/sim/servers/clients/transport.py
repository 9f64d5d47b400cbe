"""The network of a real parameter client: connections that keep what TCP promises, to the servers of the simulator.

What is sent over one comes once and in its order, or not at all when it breaks (`processes.link`); what was given up
may come late all the same, while the same is sent again over the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from adamctl.config.records import NodeRecord, decode, encode
from adamctl.errors import DeadlineError, RemoteError, UnreachableError
from adamctl.net.handshake import FEATURES
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry, Hello, HelloReply, Message
from tests.sim.processes.link import End, connect
from tests.sim.servers.shells.context import SimConfiguration
from tests.sim.servers.shells.requests import SENT_S_MAX, SimReply

if TYPE_CHECKING:
    from tests.sim.servers.clients.real_worker import RealWorker
    from tests.sim.servers.shells.server import SimServer

SCHEME = "memory://"
TORN = 0.5
"""How often an answer that does not come whole has been written in part."""


class Watch(Protocol):
    """Sees what is asked and answered."""

    def asks(self, client: ClientKey, message: Message, body: bytes) -> None: ...

    def answered(self, client: ClientKey, asked: Message, answer: Message, sent_s: float) -> None: ...


class Call(NamedTuple):
    """A request as it travels."""

    number: int
    message: Message
    body: bytes


class Answer(NamedTuple):
    """What comes back: a message, or why there is none; `sent_s`: when the server gave it."""

    number: int
    content: Message | RemoteError
    body: bytes
    sent_s: float


@dataclass
class Waiting:
    """A request that waits for its answer. `body`: as it was when the request was made."""

    future: asyncio.Future[SimReply]
    message: Message
    pieces: Sequence[Any]
    body: bytes
    into: Sequence[memoryview] | None


class Accepted:
    """A server's end of a connection; who has its address no more refuses it."""

    def __init__(self, server: SimServer, incarnation: int, end: End) -> None:
        self._server, self._incarnation, self._end = server, incarnation, end
        end.take = self._greeted

    def _greeted(self, call: Call) -> None:
        server, end, hello = self._server, self._end, call.message
        assert isinstance(hello, Hello)
        if not server.alive or server.incarnation != self._incarnation:
            end.close()
            return
        run, client = server.run, (hello.node, hello.incarnation)
        server.accepted.append(end)
        end.take = lambda call: server.gate(run, partial(self._serve, client, call))
        end.broken = partial(server.disconnect, end.number)
        reply = HelloReply(1, FEATURES, "ps", server.name, server.incarnation, 1 << 30)
        server.gate(run, partial(self._answer, call.number, reply, []))

    def _serve(self, client: ClientKey, call: Call) -> None:
        answered, failed = partial(self._answer, call.number), partial(self._fail, call.number)
        self._server.asked_by_client(self._end.number, client, call.message, call.body, answered, failed, self._cut_off)

    def _cut_off(self) -> None:
        """It ends in the middle of a request."""
        if self._end.open:
            self._end.close()
            self._server.disconnect(self._end.number)

    def _answer(self, number: int, message: Message, pieces: list[Any]) -> None:
        self._end.send(Answer(number, message, b"".join(pieces), self._server.world.now_s))

    def _fail(self, number: int, code: int, text: str, details: Mapping[str, object]) -> None:
        self._end.send(Answer(number, RemoteError(ErrorCode(code), text, dict(details)), b"", 0.0))


class ClientConnection:
    """The client's end; see `adamctl.net.transport.Connection`."""

    kind = "tcp"
    peer: HelloReply

    def __init__(self, process: RealWorker, node: str, client: ClientKey, watch: Watch, end: End) -> None:
        self._process, self._view, self._loop = process, process.member.view, process.loop
        self.peer_name, self._client, self._watch, self._end = node, client, watch, end
        self.closed = False
        self._waiting: dict[int, Waiting] = {}
        self._queue: deque[int] = deque()
        self._number, self._free_s = 0, 0.0
        run = process.run
        end.take = lambda answer: process.gate(run, lambda: self._loop.do(partial(self._come, answer)))
        end.broken = lambda: process.gate(run, lambda: self._loop.do(partial(self.break_off, "the connection is lost")))

    async def share(self, region: object, *, deadline_s: float) -> bool:
        """Nothing is shown over TCP."""
        return False

    async def request(
        self, message: Message, body: Sequence[Any] = (), *, deadline_s: float, into: Sequence[memoryview] | None = None
    ) -> SimReply:
        if self.closed:
            raise UnreachableError(f"the connection to {self.peer_name} is closed")
        self._number += 1
        number = self._number
        before = b"".join(memoryview(piece).cast("B") for piece in body)
        self._watch.asks(self._client, message, before)
        future: asyncio.Future[SimReply] = self._loop.create_future()
        self._waiting[number] = Waiting(future, message, body, before, into)
        timer = self._loop.call_later(deadline_s, self._late, future)
        self._begin_to_send(number, bool(body))
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)  # what has not been sent is not sent any more

    def _begin_to_send(self, number: int, later: bool) -> None:
        """One request after another; bodies are read when it is their turn."""
        self._queue.append(number)
        world = self._process.world
        if later:
            self._free_s = max(self._free_s, world.now_s + world.random.random() * SENT_S_MAX)
        if self._free_s <= world.now_s:
            self._send_next()
        else:
            self._view.after(self._free_s - world.now_s, self._send_next)

    def _send_next(self) -> None:
        number = self._queue.popleft()
        waiting = self._waiting.get(number)
        if waiting is None or waiting.future.done() or self.closed:
            return
        sent = b"".join(memoryview(piece).cast("B") for piece in waiting.pieces)
        if sent != waiting.body:
            self._process.violated("what is sent to a server was written over")
        self._end.send(Call(number, waiting.message, sent))

    def _late(self, future: asyncio.Future[SimReply]) -> None:
        if not future.done():
            future.set_exception(DeadlineError(f"{self.peer_name} did not answer in time"))

    def _come(self, answer: Answer) -> None:
        waiting = self._waiting.pop(answer.number, None)
        if waiting is None or waiting.future.done() or self.closed:
            return
        if isinstance(answer.content, RemoteError):
            error = answer.content
            late = error.code == ErrorCode.DEADLINE_PASSED
            waiting.future.set_exception(DeadlineError(str(error)) if late else error)
            return
        self._watch.answered(self._client, waiting.message, answer.content, answer.sent_s)
        waiting.future.set_result(self._received(waiting, answer.content, answer.body))

    def _received(self, waiting: Waiting, message: Message, body: bytes) -> SimReply:
        """The body is written where the client wants it, if it has the length that is expected there."""
        into = waiting.into
        if into is None or sum(len(target) for target in into) != len(body):
            return ClientReply(message, memoryview(bytearray(body)))
        _write(into, body)
        return SimReply(message, into[0] if len(into) == 1 else memoryview(b""), True)

    def break_off(self, why: str) -> None:
        """Nobody will answer over it; what was being received may have been written in part."""
        if self.closed:
            return
        self.closed = True
        for waiting in list(self._waiting.values()):
            if waiting.future.done():
                continue
            if waiting.into and self._process.world.chance(TORN):
                _write(waiting.into[:1], b"\xff" * len(waiting.into[0]))  # NaN
            waiting.future.set_exception(UnreachableError(f"{self.peer_name}: {why}"))

    def end(self, *, tells: bool) -> None:
        """The process has ended."""
        self.closed = True
        if self._end.open:
            self._end.close(tells=tells)

    async def close(self) -> None:
        if not self.closed:
            self._end.close()
            self.break_off("closed on this side")


class ClientReply(SimReply):
    """A reply whose body is nothing when it has been given back."""

    def release(self) -> None:
        self.body[:] = b"\xff" * len(self.body)


class ClientTransport:
    """See `adamctl.net.transport.Transport`; one client's part of it."""

    kind = "auto"

    def __init__(self, process: RealWorker, watch: Watch, numbers: Iterator[int]) -> None:
        self._process, self._watch, self._numbers = process, watch, numbers
        self.connections: list[ClientConnection] = []

    async def connect(
        self, address: str, identity: Hello, *, deadline_s: float, expects: tuple[str, str]
    ) -> ClientConnection:
        process = self._process
        node, _, incarnation = address.removeprefix(SCHEME).partition("/")
        ours, theirs = connect(process.world, next(self._numbers), process.name, node)
        Accepted(process.servers[node], int(incarnation), theirs)
        connection = ClientConnection(process, node, (identity.node, identity.incarnation), self._watch, ours)
        self.connections.append(connection)
        try:
            reply = await connection.request(identity, deadline_s=deadline_s)
        except BaseException:
            await connection.close()
            raise
        assert isinstance(reply.message, HelloReply)
        connection.peer = reply.message
        return connection


class ClientConfiguration(SimConfiguration):
    """The configuration, where servers have addresses: one for each process."""

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        revision, entries = await super().read(prefix)
        return revision, [_with_address(entry) for entry in entries]


def _with_address(entry: ConfigEntry) -> ConfigEntry:
    if not entry.key.startswith("/nodes/"):
        return entry
    record = decode(entry.value, NodeRecord)
    addresses = (f"{SCHEME}{record.node}/{record.incarnation}",)
    return msgspec.structs.replace(entry, value=encode(msgspec.structs.replace(record, addresses=addresses)))


def _write(into: Sequence[memoryview], body: bytes) -> None:
    start = 0
    for target in into:
        target[:] = body[start : start + len(target)]
        start += len(target)

"""Requests as a simulated server's shell sees them, and connections to other servers as it makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adamctl.errors import DeadlineError, RemoteError, UnreachableError
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Hello, HelloReply, Message

if TYPE_CHECKING:
    import asyncio

    from tests.sim.servers.shells.server import SimServer

SENT_S_MAX = 0.001
Send = Callable[[Message, list[Any]], None]
Fail = Callable[[int, str, Mapping[str, object]], None]


class SimLease:
    """A counted hold on a request's body, which looks like nothing when nobody holds it."""

    def __init__(self, body: bytearray) -> None:
        self._body, self._holders = body, 1

    def retain(self) -> None:
        assert self._holders, "a body is held that was given back"
        self._holders += 1

    def release(self) -> None:
        assert self._holders, "a body is given back twice"
        self._holders -= 1
        if not self._holders:
            self._body[:] = b"\xff" * len(self._body)  # NaN


class SimRequest:
    """A request to a server; see `adamctl.net.transport.Request`. What is sent is read a moment after it was given."""

    one_way = False
    deadline_s = float("inf")
    local_address = "sim://"

    def __init__(
        self, server: SimServer, peer: Hello, connection: int, message: Message, body: bytearray, send: Send, fail: Fail
    ) -> None:
        self._server, self.peer, self.connection_id, self.message = server, peer, connection, message
        self.peer_name = peer.node
        self.lease = SimLease(body)
        self.body = memoryview(body)
        self.arrival: Any = None
        self.answered = False
        self._send, self._fail = send, fail

    def region(self, number: int) -> memoryview:
        raise RemoteError(ErrorCode.UNKNOWN_REGION, f"there is no region {number}")

    def reply(self, message: Message, body: Sequence[Any] = (), on_sent: Callable[[], None] | None = None) -> None:
        self._finish()
        server = self._server
        server.answers(message)

        def sent() -> None:
            copies = [bytes(memoryview(piece).cast("B")) for piece in body]
            if on_sent is not None:
                server.loop.do(on_sent)
            self._send(message, copies)

        if body:
            server.view.after(server.world.random.random() * SENT_S_MAX, sent)
        else:
            sent()

    def fail(self, code: int, message: str, details: Mapping[str, object] | None = None) -> None:
        self._finish()
        self._fail(code, message, details or {})

    def _finish(self) -> None:
        if self.answered:
            raise RuntimeError(f"a {type(self.message).__name__} was answered twice")
        self.answered = True
        self.body = memoryview(b"")
        self.lease.release()


@dataclass
class SimReply:
    """What a peer has answered; see `adamctl.net.transport.Reply`."""

    message: Message
    body: memoryview
    received_into: bool = False

    def release(self) -> None:
        """Nothing to give back."""


class SimConnection:
    """A connection of one process of a server to one of another.

    What is sent may come twice and in any order: by another connection that was made meanwhile.
    """

    kind = "memory"

    def __init__(self, server: SimServer, peer: SimServer, hello: HelloReply) -> None:
        self._server, self._peer, self._view, self._loop = server, peer, server.view, server.loop
        self._peer_run = peer.run
        self.peer, self.peer_name = hello, hello.node
        self.closed = False
        self._waiting: dict[int, asyncio.Future[SimReply]] = {}
        self._number = 0
        server.connections.append(self)

    async def request(
        self, message: Message, body: Sequence[Any] = (), *, deadline_s: float, into: object = None
    ) -> SimReply:
        if self.closed:
            raise UnreachableError(f"the connection to {self.peer_name} is closed")
        self._number += 1
        number = self._number
        future: asyncio.Future[SimReply] = self._loop.create_future()
        self._waiting[number] = future
        timer = self._loop.call_later(deadline_s, self._late, future)
        if body:
            before = b"".join(memoryview(piece).cast("B") for piece in body)
            delay_s = self._server.world.random.random() * SENT_S_MAX
            self._view.after(delay_s, lambda: self._sent(number, message, body, before))
        else:
            self._sent(number, message, (), b"")
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)

    def _late(self, future: asyncio.Future[SimReply]) -> None:
        if not future.done():
            future.set_exception(DeadlineError(f"{self.peer_name} did not answer in time"))

    def _sent(self, number: int, message: Message, body: Sequence[Any], before: bytes) -> None:
        if number not in self._waiting or self._waiting[number].done():
            return
        sent = b"".join(memoryview(piece).cast("B") for piece in body)
        if sent != before:
            self._server.violated("what is sent to another server was written over")
        server, peer, view, run = self._server, self._peer, self._view, self._peer_run

        def broken() -> None:
            view.after(0.0, self.break_off)

        def answered(reply: Message, pieces: list[Any]) -> None:
            back = peer.view
            back.send_reliably(server.name, lambda: server.gate(view.run, lambda: come(reply, pieces)), broken)

        def come(reply: Message, pieces: list[Any]) -> None:
            self._settle(number, lambda future: future.set_result(SimReply(reply, memoryview(b"".join(pieces)))))

        def failed(code: int, text: str, details: Mapping[str, object]) -> None:
            error = RemoteError(ErrorCode(code), text, dict(details))
            back = peer.view
            back.send_reliably(
                server.name,
                lambda: server.gate(view.run, lambda: self._settle(number, lambda f: f.set_exception(error))),
                broken,
            )

        def arrive() -> None:
            if peer.run != run or not peer.alive:
                broken()
            else:
                hello = Hello(1, 1, (), "ps", server.name, server.incarnation)
                peer.gate(run, lambda: peer.asked_by_peer(hello, message, sent, answered, failed))

        view.send_reliably(peer.name, arrive, broken)

    def _settle(self, number: int, settle: Callable[[asyncio.Future[SimReply]], None]) -> None:
        future = self._waiting.get(number)
        if future is not None and not future.done():
            found = future
            self._loop.do(lambda: settle(found))

    def break_off(self) -> None:
        """It has ended, and nobody will answer over it."""
        if self.closed:
            return
        self.closed = True
        for number in list(self._waiting):
            error = UnreachableError(f"the connection to {self.peer_name} is closed")
            self._settle(number, lambda future, error=error: future.set_exception(error))  # type: ignore[misc]

    def is_to(self, peer: str, run: int) -> bool:
        return self.peer_name == peer and self._peer_run == run

    async def close(self) -> None:
        self.break_off()

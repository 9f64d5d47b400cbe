"""The client's end of a connection: sends requests, receives replies, respects credit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from adamctl.config.names import in_short, is_name
from adamctl.errors import AdamctlError, DeadlineError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.greeting import check_certificate, check_listener, greet
from adamctl.net.handshake import SHARED_MEMORY, refusal
from adamctl.net.limits import ClientLimits, admits
from adamctl.net.pending import EMPTY, Pending, StreamReply
from adamctl.net.pool import BufferPool, PooledBuffer
from adamctl.net.protocol import FrameProtocol, body_views
from adamctl.net.shared_memory import Region
from adamctl.net.showing import ShownRegions
from adamctl.net.tls.identity import ANYONE, Secured
from adamctl.wire.codec import FrameHead, decode_message, encode_request
from adamctl.wire.constants import ErrorCode, Flag, Opcode
from adamctl.wire.decoder import BodyTarget, Frame, discard_target
from adamctl.wire.messages import OPCODE_OF_REQUEST, CreditGrant, ErrorReply, Hello, HelloReply, Message

_REPLY = int(Flag.REPLY)
_ERROR = int(Flag.ERROR)
_LATE_S = 0.001
"""What a request says is left when its deadline has come before it could be sent: 0 would mean no deadline."""


class ClientProtocol(FrameProtocol):
    """Requests by id. Frames from the server that answer no request of ours, except CREDIT, end the connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: BufferPool,
        limits: ClientLimits,
        address: str,
        *,
        lossy: bool = False,
    ) -> None:
        super().__init__(loop)
        self.address = address
        self._pool = pool
        # On a stream, a given-up request frees its credit with its late reply; where frames can vanish, at once.
        self._lossy = lossy
        self._limits = limits
        self._pending: dict[int, Pending] = {}  # sent or about to be, by request id
        self._waiting: deque[Pending] = deque()  # for credit, first in first out
        self._last_id = 0
        self._credit_bytes = 0
        self._in_flight: dict[int, int] = {}  # body bytes by request id, kept until the reply even if no caller waits
        self._in_flight_bytes = 0

    # --- requests ---------------------------------------------------------------------------------------------------

    async def greet(self, identity: Hello, deadline: float, *, trusted: bool = False) -> HelloReply:
        """Exchanges HELLO and proofs of the token, until `deadline` (loop.time()); returns the answer to HELLO.

        Raises as `Transport.connect` does.
        """
        self._credit_bytes = 1
        reply = await greet(self, identity, deadline, trusted=trusted)
        self._credit_bytes = reply.credit_bytes
        return reply

    async def call(
        self,
        message: Message,
        body: Sequence[Any],
        deadline_s: float,
        into: Sequence[memoryview] | None,
        one_way: bool = False,
    ) -> Any:
        """Waits for credit, sends a request, then waits for its reply (one-way: for the kernel)."""
        if self.closing or self.lost.done():
            raise self._gone()
        views, size_bytes = body_views(body)
        pending = Pending(message, views, size_bytes, one_way)
        if into is not None:
            pending.into, pending.into_bytes = body_views(into)
        pending.deadline = self.loop.time() + deadline_s
        pending.answer = self.loop.create_future()
        pending.timer = self.loop.call_at(pending.deadline, self._expire, pending)
        try:
            if not self._waiting and self._admitted(pending):
                self._submit(pending)
            else:
                self._waiting.append(pending)
            return await pending.answer
        finally:
            pending.timer.cancel()
            self._forget(pending)
            # Circles that only the garbage collector would free, with bodies and connections in them: through what is
            # called when a one-way request is sent, and through this frame in the traceback of a request's failure.
            pending.outgoing = None
            del pending

    def _admitted(self, pending: Pending) -> bool:
        if max(len(self._pending), len(self._in_flight)) >= self._limits.requests_per_connection_max:
            return False
        return not pending.size_bytes or admits(self._in_flight_bytes, pending.size_bytes, self._credit_bytes)

    def _submit(self, pending: Pending) -> None:
        self._last_id += 1
        request_id = pending.request_id = self._last_id
        head = encode_request(
            pending.message,
            request_id,
            deadline_s=max(pending.deadline - self.loop.time(), _LATE_S),
            body_bytes=pending.size_bytes,
            one_way=pending.one_way,
        )
        self._in_flight_bytes += pending.size_bytes
        on_sent = None
        if pending.one_way:
            on_sent = lambda: self._one_way_sent(pending)  # noqa: E731
        else:
            self._in_flight[request_id] = pending.size_bytes
        self._pending[request_id] = pending
        pending.outgoing = self.send(head, pending.views, pending.size_bytes, on_sent)

    def _submit_waiting(self) -> None:
        while self._waiting and self._admitted(self._waiting[0]):
            pending = self._waiting.popleft()
            if not pending.answer.done():
                try:
                    self._submit(pending)
                except (ValueError, TypeError) as error:
                    pending.answer.set_exception(error)

    def _expire(self, pending: Pending) -> None:
        if not pending.answer.done():
            what = "its turn (credit)" if not pending.request_id else "an answer"
            name = type(pending.message).__name__
            pending.answer.set_exception(DeadlineError(f"{self.address}: {name} waited too long for {what}"))

    def _forget(self, pending: Pending) -> None:
        """Called when the caller has its answer or is gone: from here on nothing may read or write its buffers."""
        if not pending.request_id:
            if pending in self._waiting:
                self._waiting.remove(pending)
                self._submit_waiting()
            return
        if self._pending.pop(pending.request_id, None) is None:
            return  # answered
        if self.lost.done() or pending.outgoing is None:
            return
        if self.withdraw(pending.outgoing) or self._lossy:
            if not pending.one_way:
                self._in_flight_bytes -= self._in_flight.pop(pending.request_id, 0)
            else:
                self._in_flight_bytes -= pending.size_bytes
            self._submit_waiting()
        elif pending.size_bytes and pending.outgoing in self._handed_over:
            # The caller may change the body before the rest of it is sent.
            self.end(
                UnreachableError(f"{self.address}: a request was given up while its body was being sent"), at_once=True
            )
        self._keep_off(pending)

    def _keep_off(self, pending: Pending | None) -> None:
        """Lets no body that is still coming, such as a second answer's, go into a caller's buffers."""
        current = self.decoder.current
        if pending is not None and current is not None and current.token is pending:
            self.decoder.discard_body()

    def _answer(self, pending: Pending, reply: StreamReply | None) -> None:
        if not pending.answer.done():
            pending.answer.set_result(reply)
        elif reply is not None:
            reply.release()

    def _one_way_sent(self, pending: Pending) -> None:
        self._pending.pop(pending.request_id, None)
        if self._lossy:
            self._in_flight_bytes -= pending.size_bytes
        self._answer(pending, None)
        self._submit_waiting()

    # --- incoming frames --------------------------------------------------------------------------------------------

    def allocate(self, head: FrameHead) -> BodyTarget | None:
        if not head.flags & _REPLY:
            raise ProtocolError(f"{self.address} sent a request with a body to a client")
        pending = self._pending.get(head.request_id)
        if pending is None:
            return discard_target(head.body_bytes)
        if pending.into is not None and pending.into_bytes == head.body_bytes and not head.flags & _ERROR:
            return BodyTarget(pending.into, pending)
        buffer = self._pool.try_allocate(head.body_bytes)
        if buffer is None:
            self._pool.when_released(self.room_again)
            return None
        return BodyTarget((buffer.view,), buffer)

    def handle_frame(self, frame: Frame, began_s: float) -> None:
        head = frame.head
        if not head.flags & _REPLY:
            if head.opcode != Opcode.CREDIT:
                raise ProtocolError(f"{self.address} sent a {Opcode(head.opcode).name} request to a client")
            grant = decode_message(head.opcode, head.flags, frame.typed_header)
            assert isinstance(grant, CreditGrant)
            released_bytes = 0 if self._lossy else grant.released_bytes
            if not 0 <= released_bytes <= self._in_flight_bytes:
                raise ProtocolError(
                    f"{self.address} returned {grant.released_bytes} bytes of credit, more than it held"
                )
            self._in_flight_bytes -= released_bytes
            self._submit_waiting()
            return
        if head.request_id == 0 and head.flags & _ERROR:
            error = decode_message(head.opcode, head.flags, frame.typed_header)
            assert isinstance(error, ErrorReply)
            self.end(refusal(self.address, error), at_once=True)
            return
        if head.request_id > self._last_id:
            raise ProtocolError(f"{self.address} answered request {head.request_id}, which was never made")
        self._in_flight_bytes -= self._in_flight.pop(head.request_id, 0)
        pending = self._pending.pop(head.request_id, None)
        self._keep_off(pending)
        if pending is None:
            self.release_target(frame.target)
        elif pending.one_way:
            raise ProtocolError(f"{self.address} answered a one-way request")
        else:
            self._deliver(pending, frame)
        self._submit_waiting()

    def _deliver(self, pending: Pending, frame: Frame) -> None:
        head, target = frame.head, frame.target
        try:
            if head.opcode != OPCODE_OF_REQUEST[type(pending.message)]:
                raise ProtocolError(
                    f"{self.address} answered a {type(pending.message).__name__} with opcode {head.opcode}"
                )
            message = decode_message(head.opcode, head.flags, frame.typed_header)
        except ProtocolError as error:
            self.release_target(target)
            if not pending.answer.done():
                pending.answer.set_exception(error)
            raise
        if isinstance(message, ErrorReply):
            self.release_target(target)
            if not pending.answer.done():
                pending.answer.set_exception(self._refused(message))
        elif target is None:
            self._answer(
                pending, StreamReply(message, EMPTY, None, pending.into is not None and not pending.into_bytes)
            )
        elif isinstance(target.token, PooledBuffer):
            self._answer(pending, StreamReply(message, target.token.view, target.token, False))
        else:
            body = target.segments[0] if len(target.segments) == 1 else EMPTY
            self._answer(pending, StreamReply(message, body, None, target.token is pending))

    def _refused(self, error: ErrorReply) -> AdamctlError:
        text = in_short(error.message)
        if error.code == ErrorCode.DEADLINE_PASSED:
            return DeadlineError(f"{self.address}: {text}")
        return RemoteError(error.code, text, error.details)

    def release_target(self, target: BodyTarget | None) -> None:
        if target is not None and isinstance(target.token, PooledBuffer):
            target.token.release()

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._pending or self._waiting)

    def _gone(self) -> AdamctlError:
        reason = self.reason
        text = f"{self.address}: {reason or 'the connection is closed'}"
        return type(reason)(text) if isinstance(reason, ProtocolError) else UnreachableError(text)

    def disconnected(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for pending in (*self._pending.values(), *waiting):
            if not pending.answer.done():
                pending.answer.set_exception(self._gone())

    def connection_lost(self, exc: Exception | None) -> None:
        # One-way requests wait only for the kernel; they must fail too, not be reported as sent.
        for frame in (*self._handed_over, *self._outgoing):
            frame.on_sent = None
        super().connection_lost(exc)


class StreamConnection:
    """A `Connection` over TCP or a Unix socket; made by `StreamTransport.connect`."""

    def __init__(self, protocol: ClientProtocol, peer: HelloReply, scheme: str, shares: bool) -> None:
        """`shares`: regions of our memory may be shared with the peer."""
        self._protocol = protocol
        self._regions = ShownRegions(scheme, shares and SHARED_MEMORY in peer.features)
        self.peer = peer
        self.peer_name = f"{peer.role}/{peer.node}@{protocol.address}"

    async def request(
        self, message: Message, body: Sequence[Any] = (), *, deadline_s: float, into: Sequence[memoryview] | None = None
    ) -> StreamReply:
        """See `adamctl.net.transport.Connection.request`. After an error, the content of `into` is undefined."""
        reply: StreamReply = await self._protocol.call(message, body, deadline_s, into)
        return reply

    async def send_one_way(self, message: Message, body: Sequence[Any] = (), *, deadline_s: float) -> None:
        """Waits for credit and sends a request without an answer; returns when the kernel has taken it.

        Raises:
            DeadlineError, UnreachableError, ProtocolError: as `request`.
        """
        await self._protocol.call(message, body, deadline_s, None, one_way=True)

    async def share(self, region: Region, *, deadline_s: float) -> bool:
        """See `adamctl.net.transport.Connection.share`."""
        return await self._regions.show(self, region, deadline_s)

    @property
    def kind(self) -> str:
        """See `adamctl.net.transport.Connection.kind`."""
        return self._regions.kind

    @classmethod
    async def greeted(
        cls,
        protocol: ClientProtocol,
        hello: Hello,
        deadline: float,
        *,
        scheme: str = "memory",
        shares: bool = False,
        expects: tuple[str, str] = ANYONE,
        secure: bool = False,
    ) -> StreamConnection:
        """Says HELLO on a new connection, until `deadline` (loop.time()). Raises as `Transport.connect`.

        `secure`: certificates say who both ends are, so no token is needed; then the other one must be who is expected.
        """
        try:
            trusted = secure or (scheme == "unix" and check_listener(protocol.socket, protocol.address))
            peer = await protocol.greet(hello, deadline, trusted=trusted)
            check_certificate(protocol, peer, expects)
        except BaseException:
            protocol.end(UnreachableError("no HELLO was exchanged"), at_once=True)
            raise
        if not (is_name(peer.role) and is_name(peer.node)):
            error = ProtocolError(f"{protocol.address} sent an invalid role or node name: {peer.role!a} {peer.node!a}")
            protocol.end(error, at_once=True)
            raise error
        return cls(protocol, peer, scheme, shares)

    @property
    def in_flight_bytes(self) -> int:
        """Body bytes of requests for which the peer has not returned credit."""
        return self._protocol._in_flight_bytes

    @property
    def secured(self) -> Secured | None:
        """See `adamctl.net.transport.Connection.secured`."""
        return self._protocol.secured

    @property
    def closed(self) -> bool:
        return self._protocol.closing

    async def wait_lost(self) -> str:
        """See `adamctl.net.transport.Connection.wait_lost`."""
        await asyncio.shield(self._protocol.lost)
        return str(self._protocol.reason or "the peer has closed the connection")

    async def close(self) -> None:
        self._protocol.end(UnreachableError("closed on this side"))
        await self._protocol.wait_lost()

"""The server's end: connections that must say HELLO, requests passed to a handler, and bounds on everything."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection

from adamctl.errors import AdamctlError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.address import parse_address
from adamctl.net.arriving import ARRIVING_BYTES_MIN, Pieces
from adamctl.net.greeting import Greeting
from adamctl.net.handler import report_failure
from adamctl.net.limits import ServerLimits, admits
from adamctl.net.peer_user import peer_source
from adamctl.net.pool import BufferPool, PooledBuffer
from adamctl.net.protocol import FrameProtocol
from adamctl.net.regions import RegionQuota, RegionTable
from adamctl.net.reply_quota import ReplyQuota
from adamctl.net.request import StreamRequest, Traffic
from adamctl.net.sources import LineQuota, Newcomers
from adamctl.net.transport import ArrivalHandler, Handler, PlacingHandler
from adamctl.net.turns import Turns
from adamctl.wire.codec import FrameHead, decode_message, encode_error, encode_reply, encode_request
from adamctl.wire.constants import ErrorCode, Flag, Opcode
from adamctl.wire.decoder import BodyTarget, Frame
from adamctl.wire.messages import MESSAGES, CreditGrant, Empty, Hello, MemoryRegisterRequest
from adamctl.wire.permissions import refusal

_LOG = logging.getLogger(__name__)
_REPLY, _ONE_WAY = int(Flag.REPLY), int(Flag.ONE_WAY)


class ServerProtocol(FrameProtocol):
    """One accepted connection."""

    peer: Hello

    def __init__(self, server: StreamServer, address: str) -> None:
        super().__init__(server.loop)
        self.connection_id = next(server.connection_ids)
        self.peer_name = f"?@{address}"
        self.source = ""
        self.greeted = False
        self._greeting = Greeting(address)
        self.born_s = self.loop.time()
        self.frame_since_s = 0.0  # when the sweep first saw the frame being received
        self.frame_number = -1
        self.taken_before_bytes = 0  # when the sweep last looked
        self.moved_s = self.born_s  # when the peer last took anything, or had nothing to take
        self.kept_pace_s = self.born_s  # the same for taking answers fast enough
        self._server, self.local_address = server, address
        self.regions = RegionTable(server.region_quota, server.limits.regions_max)
        self.refusals = server.traffic.refusals
        self._outstanding = 0  # requests read and not yet answered, or whose answer the kernel has not yet taken
        self._body_bytes = 0  # bodies of requests not yet answered
        self._released_bytes = 0  # of one-way requests, not yet told to the client

    # --- reading ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.source = peer_source(self.socket)
        self._server.accepted(self)

    def may_read(self) -> bool:
        limits = self._server.limits
        own = self._outstanding < limits.requests_per_connection_max and self.outgoing_bytes < limits.reply_bytes_max
        return own and self._server.replies.has_room(self)

    def count_outgoing(self, change_bytes: int) -> None:
        super().count_outgoing(change_bytes)
        self._server.replies.count(change_bytes, self._server.connections)

    def allocate(self, head: FrameHead) -> BodyTarget | None:
        if not self.greeted:
            raise ProtocolError(f"expected HELLO first, found {Opcode(head.opcode).name}")
        if head.flags & _REPLY:
            raise ProtocolError("a client sent an answer, which only servers do")
        self.body_begins()
        if not admits(self._body_bytes, head.body_bytes, self._server.limits.credit_bytes):
            return None  # beyond its credit: wait until `finish` frees some
        target = self._placed(head) or self._pooled(head)
        self._body_bytes += 0 if target is None else head.body_bytes
        return target

    def _placed(self, head: FrameHead) -> BodyTarget | None:
        """Returns where the handler wants a one-way body, if it does."""
        if self._server.placing is None or not head.flags & _ONE_WAY or head.opcode not in MESSAGES:
            return None
        request = self._request(head, self.decoder.typed_header, None, self._body_began_s)
        place = self._server.placing(request)
        return None if place is None else BodyTarget((place,), request)

    def _pooled(self, head: FrameHead) -> BodyTarget | None:
        buffer = self._server.turns.allocate(self, head.body_bytes)
        if buffer is None:
            return None
        handler = self._server.arriving
        if handler is not None and head.body_bytes >= ARRIVING_BYTES_MIN and head.opcode in MESSAGES:
            return self._arriving(handler, head, buffer)
        return BodyTarget((buffer.view,), buffer)

    def _arriving(self, handler: ArrivalHandler, head: FrameHead, buffer: PooledBuffer) -> BodyTarget:
        """Returns where a large body goes: into pieces, if the handler wants them as they arrive."""
        try:
            request = self._request(head, self.decoder.typed_header, buffer, self._body_began_s)
        except ProtocolError:
            buffer.release()
            raise
        try:
            arrival = handler(request)
        except Exception:  # the handler's fault; the request still goes to the other handler
            if self._server.may_log(self.source):
                _LOG.exception("the handler for arriving bodies failed on a request of %s", self.peer_name)
            arrival = None
        if arrival is None:
            return BodyTarget((buffer.view,), request)
        request.arrival = arrival
        found = Pieces(arrival, buffer.view, self.peer_name)
        return BodyTarget(found.segments, request, found.filled)

    def handle_frame(self, frame: Frame, began_s: float) -> None:
        head = frame.head
        if not self.greeted:
            self._greet(frame)
            return
        if head.flags & _REPLY:
            raise ProtocolError("a client sent an answer, which only servers do")
        if head.opcode in (Opcode.HELLO, Opcode.PROVE):
            raise ProtocolError(f"expected one {Opcode(head.opcode).name} per connection, found a second")
        held = frame.target.token if frame.target is not None else None
        if isinstance(held, StreamRequest):
            request = held
        else:
            assert held is None or isinstance(held, PooledBuffer)
            try:
                request = self._request(head, frame.typed_header, held, began_s)
            except ProtocolError:
                self.release_target(frame.target)
                raise
            except RemoteError as error:  # a later version's request
                self._outstanding += 1
                StreamRequest(self, head, Empty(), held, began_s).fail(error.code, str(error))
                return
        message = request.message
        self._outstanding += 1
        if request.deadline_s < self.loop.time():
            text = f"the deadline passed before the request of {self.peer_name} was served"
            request.fail(ErrorCode.DEADLINE_PASSED, text)
            return
        try:
            if isinstance(message, MemoryRegisterRequest):
                refused = refusal(self.peer, head.opcode, message)
                if refused:
                    raise RemoteError(ErrorCode.NOT_ALLOWED, refused)
                self.regions.register(self.socket, message)
                request.reply(Empty())
                return
            self._server.handler(request)
        except Exception as error:
            if not request.answered:
                report_failure(request, error)
                if request.one_way and isinstance(error, ProtocolError):
                    raise  # no answer would tell the peer
            elif self._server.may_log(self.source):
                _LOG.exception("the handler failed after it answered %s", self.peer_name)

    def _request(
        self, head: FrameHead, typed_header: bytes, buffer: PooledBuffer | None, began_s: float
    ) -> StreamRequest:
        """Returns the request. Raises ProtocolError: its header is malformed; RemoteError: its opcode is unknown."""
        message = decode_message(head.opcode, head.flags, typed_header)
        deadline_s = began_s + head.deadline_ms / 1000 if head.deadline_ms else float("inf")
        return StreamRequest(self, head, message, buffer, deadline_s)

    def _greet(self, frame: Frame) -> None:
        head = frame.head
        try:
            reply = self._greeting.answer(self, frame, self._server.identity, self._server.limits.credit_bytes)
            if self._greeting.done:
                self._server.admit(self)
        except RemoteError as error:
            self.refusals[error.code] += 1
            self.send(encode_error(head.opcode, head.request_id, error.code, str(error)))
            self.end(ProtocolError(str(error)))
            return
        if self._greeting.done:
            self.peer, self.proof = self._greeting.peer, self._greeting.proof
            self.peer_name = f"{self.peer.role}/{self.peer.node}@{self.local_address}"
            self.greeted = self.decoder.any_opcode = True
        self.send(encode_reply(head.opcode, head.request_id, reply))

    def release_target(self, target: BodyTarget | None) -> None:
        if target is None:
            return
        if isinstance(target.token, StreamRequest):
            target.token.lease.release()
        elif isinstance(target.token, PooledBuffer):
            target.token.release()

    def refuse(self, error: AdamctlError) -> None:
        if self._server.may_log(self.source):
            _LOG.warning("%s broke the protocol and is cut (from %s): %s", self.peer_name, self.source, error)
        self.refusals[ErrorCode.BAD_MESSAGE] += 1
        self.send(encode_error(Opcode.HELLO, 0, ErrorCode.BAD_MESSAGE, str(error)))

    # --- answering --------------------------------------------------------------------------------------------------

    def finish(
        self,
        request: FrameHead,
        head: bytes,
        views: list[memoryview],
        size_bytes: int,
        on_sent: Callable[[], None] | None,
    ) -> None:
        """Sends an answer (none where `head` is empty) and lets the client send more."""
        self._body_bytes -= request.body_bytes

        def sent() -> None:
            self._outstanding -= 1
            if on_sent is not None:
                on_sent()
            if self._incoming or self._read_paused:
                self.advance()

        if head:
            self.send(head, views, size_bytes, sent)
        else:
            sent()
            self._return_credit(request.body_bytes)
        if self.decoder.blocked:
            self.resume_blocked()

    def _return_credit(self, size_bytes: int) -> None:
        self._released_bytes += size_bytes
        if self._released_bytes >= max(1, self._server.limits.credit_bytes // 4):
            self.send(encode_request(CreditGrant(self._released_bytes), 0, one_way=True))
            self._released_bytes = 0

    def disconnected(self) -> None:
        self.regions.clear()
        self._server.gone(self)


class StreamServer:
    """A listening server, made by `StreamTransport.serve`.

    Attributes:
        addresses: what it listens on, ports filled in.
        pool: the buffers of its requests' bodies; `pool.statistics()` for status replies.
        turns: the order in which connections get them.
        replies: its unsent answers.
        region_quota: its clients' memory that it has mapped.
        traffic: what it has received, sent and refused.
    """

    def __init__(
        self,
        identity: Hello,
        handler: Handler,
        limits: ServerLimits,
        on_disconnect: Callable[[int], None] | None,
        arriving: ArrivalHandler | None = None,
        placing: PlacingHandler | None = None,
        *,
        sweep: bool = True,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.identity = identity
        self.handler = handler
        self.arriving, self.placing = arriving, placing
        self.limits = limits
        self.pool = BufferPool(limits.memory_bytes_max)
        self.turns = Turns(self.pool)
        self.addresses: tuple[str, ...] = ()
        self.connection_ids = itertools.count(1)
        self._on_disconnect = on_disconnect
        self._newcomers = Newcomers[ServerProtocol](limits.handshakes_max)  # before HELLO
        self._lines = LineQuota(limits.log_lines_per_address_max, limits.log_window_s)
        self._connections: dict[ServerProtocol, None] = {}  # after it
        self._closers: list[Callable[[], None]] = []
        self._closing = False
        self.replies = ReplyQuota(limits)
        self.region_quota = RegionQuota(limits.region_bytes_max)
        self.traffic = Traffic()
        self._sweeper = self.loop.call_later(limits.sweep_interval_s, self._sweep) if sweep else None

    @property
    def connection_count(self) -> int:
        """Connections that have said HELLO."""
        return len(self._connections)

    @property
    def connections(self) -> Collection[ServerProtocol]:
        """Connections that have said HELLO."""
        return self._connections.keys()

    def connections_by_kind(self) -> dict[str, int]:
        """Returns kind -> number of connections that have said HELLO; `shared` are those that registered memory."""
        kinds = Counter(
            "shared" if len(protocol.regions) else parse_address(protocol.local_address).scheme
            for protocol in self._connections
        )
        return dict(sorted(kinds.items()))

    @property
    def region_bytes(self) -> int:
        """Bytes of clients' memory that is mapped here."""
        return sum(protocol.regions.size_bytes for protocol in self._connections)

    def listening(self, address: str, close: Callable[[], None]) -> None:
        """Adds a listener that accepts connections; `close` stops it."""
        self.addresses += (address,)
        self._closers.append(close)

    def protocol_factory(self, address: str) -> Callable[[], ServerProtocol]:
        return lambda: ServerProtocol(self, address)

    def accepted(self, protocol: ServerProtocol) -> None:
        if self._closing:
            protocol.end(UnreachableError("the server is closing"), at_once=True)
            return
        last = self._newcomers.add(protocol, protocol.source)
        if last is not None:
            last.end(ProtocolError("too many connections that have not said HELLO"), at_once=True)

    def may_log(self, source: str) -> bool:
        """Counts a log line about a peer and returns whether it may be written."""
        self._log_sums(self.loop.time())
        return self._lines.take(source, self.loop.time())

    def _log_sums(self, now: float) -> None:
        for source, lines in self._lines.sums(now):
            _LOG.warning("and %d more lines about %s in %g s", lines, source, self.limits.log_window_s)

    def admit(self, protocol: ServerProtocol) -> None:
        """Admits a new connection to those that may make requests. Raises RemoteError: there is no room."""
        if self._closing:
            raise RemoteError(ErrorCode.SHUTTING_DOWN, "the server is closing")
        if len(self._connections) >= (most := self.limits.connections_max):
            raise RemoteError(ErrorCode.OVER_QUOTA, f"all {most} connections are taken; try again later")
        self._newcomers.discard(protocol)
        self._connections[protocol] = None

    def gone(self, protocol: ServerProtocol) -> None:
        self._newcomers.discard(protocol)
        self.replies.forget(protocol)
        self.turns.leave(protocol)
        if protocol in self._connections:
            self.traffic.gone(protocol)
            del self._connections[protocol]
            if self._on_disconnect is not None:
                self._on_disconnect(protocol.connection_id)

    def _sweep(self) -> None:
        """Cuts peers without progress: silent before HELLO, stuck in a frame, or not taking their answers."""
        now = self.loop.time()
        self._log_sums(now)
        for protocol in self._newcomers:
            if now - protocol.born_s > self.limits.hello_timeout_s:
                protocol.end(ProtocolError("no HELLO in time"), at_once=True)
        for protocol in list(self._connections):
            self._sweep_one(protocol, now)
        self.replies.press(self.connections, now)
        self._sweeper = self.loop.call_later(self.limits.sweep_interval_s, self._sweep)

    def _sweep_one(self, protocol: ServerProtocol, now: float) -> None:
        decoder = protocol.decoder
        if not decoder.mid_frame or not protocol.reading or protocol.frame_number != decoder.frames_seen:
            protocol.frame_number = decoder.frames_seen
            protocol.frame_since_s = now
        elif now - protocol.frame_since_s > self.limits.frame_timeout_s:
            protocol.end(ProtocolError(f"a frame took longer than {self.limits.frame_timeout_s} s"), at_once=True)
        taken_bytes = protocol.taken_bytes
        grown_bytes, protocol.taken_before_bytes = taken_bytes - protocol.taken_before_bytes, taken_bytes
        if not protocol.write_stalled or grown_bytes:
            protocol.moved_s = now
        pace_bytes = self.limits.reply_pace_bytes_per_s * self.limits.sweep_interval_s
        if not protocol.write_stalled or grown_bytes >= pace_bytes:
            protocol.kept_pace_s = now
        if now - protocol.moved_s > self.limits.write_stall_timeout_s:
            protocol.end(UnreachableError("the peer does not take its answers"), at_once=True)

    async def close(self) -> None:
        """Stops listening and closes every connection once pending answers are sent, or after one second."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for close in self._closers:
            close()
        self._closers.clear()
        self._log_sums(float("inf"))
        protocols = [*self._connections, *self._newcomers]
        for protocol in protocols:
            protocol.end(UnreachableError("the server is closing"))
        await asyncio.gather(*(protocol.wait_lost() for protocol in protocols))

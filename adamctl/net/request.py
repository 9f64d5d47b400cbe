"""A request that came over a stream, as a server sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from adamctl.errors import RemoteError
from adamctl.net.pool import PooledBuffer
from adamctl.net.protocol import body_views
from adamctl.net.regions import RegionTable
from adamctl.net.tls.identity import Secured
from adamctl.net.transport import Arrival, Lease
from adamctl.wire.codec import FrameHead, encode_error, encode_reply
from adamctl.wire.constants import ErrorCode, Flag
from adamctl.wire.messages import Hello, Message

_EMPTY = memoryview(b"")
_ONE_WAY = int(Flag.ONE_WAY)


class Carrying(Protocol):
    """A connection, which counts its own bytes."""

    received_bytes: int
    handed_over_bytes: int


class Traffic:
    """What a server has received, sent and refused since it began. Nothing is counted here for each frame.

    Attributes:
        refusals: error code -> refused requests and connections.
    """

    def __init__(self) -> None:
        self.refusals: Counter[int] = Counter()
        self._received_bytes = self._sent_bytes = 0  # over connections that are gone

    def gone(self, connection: Carrying) -> None:
        """Keeps what a connection has carried, as it leaves those that are given to `bytes_with`."""
        self._received_bytes += connection.received_bytes
        self._sent_bytes += connection.handed_over_bytes

    def bytes_with(self, connections: Iterable[Carrying]) -> tuple[int, int]:
        """Returns the bytes received and sent over these connections and those that are gone; not mapped memory."""
        received_bytes, sent_bytes = self._received_bytes, self._sent_bytes
        for connection in connections:
            received_bytes += connection.received_bytes
            sent_bytes += connection.handed_over_bytes
        return received_bytes, sent_bytes


class Answering(Protocol):
    """The part of its connection that a request uses."""

    peer: Hello
    peer_name: str
    proof: str
    """By what the peer has proved who it is, in words."""
    local_address: str
    connection_id: int
    regions: RegionTable
    """The memory that the client has registered."""
    refusals: Counter[int]
    """Error code -> how many requests and connections its server has refused."""
    secured: Secured | None

    def finish(
        self,
        request: FrameHead,
        head: bytes,
        views: list[memoryview],
        size_bytes: int,
        on_sent: Callable[[], None] | None,
    ) -> None:
        """Sends an answer (none where `head` is empty) and lets the client send more."""
        ...


class NoLease:
    """The lease of an empty body: holds nothing."""

    def retain(self) -> None:
        """Does nothing."""

    def release(self) -> None:
        """Does nothing."""


_NO_LEASE = NoLease()


class StreamRequest:
    """A request that came over a stream; see `adamctl.net.transport.Request`."""

    __slots__ = ("_answered", "_head", "_protocol", "arrival", "body", "deadline_s", "lease", "message")

    def __init__(
        self,
        protocol: Answering,
        head: FrameHead,
        message: Message,
        buffer: PooledBuffer | None,
        deadline_s: float,
    ) -> None:
        self._protocol = protocol
        self._head = head
        self._answered = False
        self.arrival: Arrival | None = None
        self.message = message
        self.body = _EMPTY if buffer is None else buffer.view
        self.lease: Lease = _NO_LEASE if buffer is None else buffer
        self.deadline_s = deadline_s

    @property
    def peer(self) -> Hello:
        return self._protocol.peer

    @property
    def secured(self) -> Secured | None:
        return self._protocol.secured

    @property
    def peer_name(self) -> str:
        return self._protocol.peer_name

    @property
    def proof(self) -> str:
        """See `adamctl.net.transport.Request.proof`."""
        return self._protocol.proof

    @property
    def local_address(self) -> str:
        return self._protocol.local_address

    @property
    def connection_id(self) -> int:
        return self._protocol.connection_id

    @property
    def one_way(self) -> bool:
        """Whether no peer waits for the answer; `reply` or `fail` must be called anyway."""
        return bool(self._head.flags & _ONE_WAY)

    @property
    def body_bytes(self) -> int:
        """See `adamctl.net.transport.Request.body_bytes`."""
        return self._head.body_bytes

    @property
    def answered(self) -> bool:
        return self._answered

    def region(self, number: int) -> memoryview:
        """See `adamctl.net.transport.Request.region`."""
        found = self._protocol.regions.find(number)
        if found is None:
            raise RemoteError(ErrorCode.UNKNOWN_REGION, f"{self.peer_name} has not registered region {number}")
        return found

    def reply(self, message: Message, body: Sequence[Any] = (), on_sent: Callable[[], None] | None = None) -> None:
        """Answers and frees the body. Raises RuntimeError if it was answered before."""
        views, size_bytes = body_views(body)
        head = b"" if self.one_way else encode_reply(self._head.opcode, self._head.request_id, message, size_bytes)
        self._finish(head, views, size_bytes, on_sent)

    def fail(self, code: int, message: str, details: Mapping[str, object] | None = None) -> None:
        """Answers with an error and frees the body. Raises RuntimeError if it was answered before."""
        self._protocol.refusals[code] += 1
        head = b"" if self.one_way else encode_error(self._head.opcode, self._head.request_id, code, message, details)
        self._finish(head, [], 0, None)

    def _finish(
        self, head: bytes, views: list[memoryview], size_bytes: int, on_sent: Callable[[], None] | None
    ) -> None:
        if self._answered:
            raise RuntimeError(f"a {type(self.message).__name__} was answered twice")
        self._answered = True
        self.body = _EMPTY
        self.arrival = None  # it may refer to us: memory of the pool must not wait for the garbage collector
        self.lease.release()
        self._protocol.finish(self._head, head, views, size_bytes, on_sent)

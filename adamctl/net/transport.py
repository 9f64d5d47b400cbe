"""What a role sees of the network: connections that carry requests, and servers that answer them.

TCP, Unix sockets (`adamctl.net.stream`) and the in-memory twin (`adamctl.net.testing.memory`) implement the same
protocols, so a role never knows which one it has. All calls are made on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from adamctl.net.kinds import TransportKind
from adamctl.net.limits import ServerLimits
from adamctl.net.shared_memory import Region
from adamctl.wire.messages import Hello, HelloReply, Message

Body: TypeAlias = Sequence["bytes | bytearray | memoryview | Any"]
"""Buffers to send one after another without joining: bytes-like or C-contiguous arrays. They must stay unchanged until
the reply has come (requests) or `on_sent` has been called (replies)."""


class Lease(Protocol):
    """A counted hold on a pooled buffer."""

    def retain(self) -> None: ...

    def release(self) -> None: ...


class Reply(Protocol):
    """An answer. `body` is valid until `release`, which must be called exactly once when it was not empty."""

    message: Message
    body: memoryview
    received_into: bool
    """Whether the body is in the caller's buffers; `body` is then that buffer if it was one, else empty."""

    def release(self) -> None: ...


class Request(Protocol):
    """A request being served. Exactly one of `reply` and `fail` must be called, at any time.

    `body` is valid until then, longer if `lease.retain()` was called: then until `lease.release()`.
    """

    message: Message
    body: memoryview
    lease: Lease
    arrival: Arrival | None
    """What was done with the body while it arrived: what an `ArrivalHandler` has made for this request."""
    deadline_s: float
    """Clock reading (loop.time()) after which the requester no longer waits; inf if it always does."""

    @property
    def peer(self) -> Hello: ...

    @property
    def peer_name(self) -> str: ...

    @property
    def local_address(self) -> str:
        """Which address of the server it came to."""
        ...

    @property
    def connection_id(self) -> int:
        """Distinguishes the connections of one server's lifetime."""
        ...

    @property
    def one_way(self) -> bool:
        """Whether nobody waits for the answer; it must be given all the same, so that credit is returned."""
        ...

    @property
    def answered(self) -> bool: ...

    def region(self, number: int) -> memoryview:
        """Returns the memory that the client has registered under this number, writable, mapped while it is held.

        Raises:
            RemoteError: UNKNOWN_REGION.
        """
        ...

    def reply(self, message: Message, body: Body = (), on_sent: Callable[[], None] | None = None) -> None: ...

    def fail(self, code: int, message: str, details: Mapping[str, object] | None = None) -> None: ...


Handler: TypeAlias = Callable[[Request], None]
"""Called on the loop for every request; must not block. An exception it lets out is answered with INTERNAL."""


class Arrival(Protocol):
    """What is done with a request's body while the rest of it is still to come."""

    @property
    def stops(self) -> Sequence[int]:
        """Where its pieces end, in bytes from the body's begin: at least one, ascending, none beyond the body's end."""
        ...

    def arrived(self, piece: int, data: memoryview) -> bool:
        """The piece that ends at `stops[piece]` is there, and in cache. Called once for each, in order, on the loop.

        Returns whether it was taken: it is then not in the request's body, where it is undefined what there is
        instead. `data` is valid until then. The connection may end before the next one comes.
        """
        ...


ArrivalHandler: TypeAlias = Callable[[Request], Arrival | None]
"""Called on the loop when all of a request but a large body is there; `body` is where that will be. It must not be
answered: it goes to the `Handler` when it is complete, if ever. None: nothing is to be done meanwhile."""


class Connection(Protocol):
    """One connection to a peer that has answered our HELLO."""

    peer: HelloReply
    peer_name: str

    async def request(
        self,
        message: Message,
        body: Body = (),
        *,
        deadline_s: float,
        into: Sequence[memoryview] | None = None,
    ) -> Reply:
        """Sends a request and returns its reply.

        Waits for credit first, so that at most the peer's `credit_bytes` of bodies are in flight. With `into`, the
        reply's body is received straight into these writable buffers, in order, if its length is their sum.

        Raises:
            DeadlineError: no reply within `deadline_s` seconds (a late one is dropped).
            UnreachableError: the connection is or was closed.
            RemoteError: the peer refused; the connection goes on.
            ProtocolError: the peer broke the format; the connection is closed.
        """
        ...

    async def send_one_way(self, message: Message, body: Body = (), *, deadline_s: float) -> None:
        """Sends a request that is not answered, after waiting for credit; returns when the kernel has taken it.

        Raises:
            DeadlineError, UnreachableError, ProtocolError: as `request`.
        """
        ...

    async def share(self, region: Region, *, deadline_s: float) -> bool:
        """Shows the peer a region of our memory, once; returns whether requests on this connection may name it.

        Raises:
            DeadlineError, UnreachableError, ProtocolError: as `request`.
        """
        ...

    @property
    def kind(self) -> str:
        """`tcp`, `unix`, `memory`, or `shared`: a Unix socket over which memory was registered."""
        ...

    @property
    def closed(self) -> bool: ...

    async def close(self) -> None: ...


class Server(Protocol):
    """A listening server. `addresses` are what it really listens on (ports filled in), `limits` its bounds."""

    addresses: tuple[str, ...]
    limits: ServerLimits

    def connections_by_kind(self) -> dict[str, int]:
        """Returns how many have said HELLO over `tcp`, `unix`, `memory`, and `shared`: those that registered memory."""
        ...

    @property
    def region_bytes(self) -> int:
        """Memory of clients that is mapped here."""
        ...

    async def close(self) -> None:
        """Stops listening and closes every connection."""
        ...


class Transport(Protocol):
    """How to reach and be reached. An address is `tcp://host:port`, `unix:///path` or, in tests, `memory://name`.

    Attributes:
        kind: which of a peer's addresses to use.
        server_limits: bounds of servers for which no others are given.
    """

    kind: TransportKind
    server_limits: ServerLimits

    async def connect(self, address: str, hello: Hello, *, deadline_s: float) -> Connection:
        """Raises UnreachableError (with the address), DeadlineError, HandshakeError."""
        ...

    async def serve(
        self,
        addresses: Sequence[str],
        identity: Hello,
        handler: Handler,
        *,
        on_disconnect: Callable[[int], None] | None = None,
        arriving: ArrivalHandler | None = None,
        limits: ServerLimits | None = None,
    ) -> Server:
        """Listens on all addresses. `identity` gives this side's role, node, incarnation and the token it demands.

        `arriving` is asked about requests with large bodies before these come.

        Raises:
            ConfigurationError: an address is malformed or taken; the message names it and says what to do.
        """
        ...

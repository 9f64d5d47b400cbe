"""The network as roles see it: connections that carry requests, and servers that answer them.

TCP, Unix sockets (`adamctl.net.stream`) and the in-memory twin (`adamctl.net.testing.memory`) implement the same
protocols, so a role never knows which one it uses. All calls are made on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from adamctl.net.address import TransportKind
from adamctl.net.limits import ServerLimits
from adamctl.net.shared_memory import Region
from adamctl.net.tls.identity import ANYONE, Secured
from adamctl.wire.messages import Hello, HelloReply, Message

Body: TypeAlias = Sequence["bytes | bytearray | memoryview | Any"]
"""Buffers to send in order without joining them: bytes-like or C-contiguous arrays. They must stay unchanged until the
reply has arrived (requests) or `on_sent` was called (replies)."""


class Lease(Protocol):
    """A counted reference to a pooled buffer."""

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
    """A request being served. Exactly one of `reply` and `fail` must be called, at any later time.

    `body` is valid until then or, if `lease.retain()` was called, until `lease.release()`.
    """

    message: Message
    body: memoryview
    lease: Lease
    arrival: Arrival | None
    """The object that an `ArrivalHandler` created for this request, to use its body while it arrived."""
    deadline_s: float
    """Clock reading (loop.time()) after which the requester no longer waits; inf if it always does."""

    @property
    def peer(self) -> Hello: ...

    @property
    def peer_name(self) -> str: ...

    @property
    def proof(self) -> str:
        """By what the peer has proved who it is: `token`, `same user`, `certificate` and which one, or `nothing`."""
        ...

    @property
    def secured(self) -> Secured | None:
        """Who the peer is by its certificate, which allows what `peer` says; None without TLS."""
        ...

    @property
    def local_address(self) -> str:
        """The server's address that it was sent to."""
        ...

    @property
    def connection_id(self) -> int:
        """Distinguishes the connections of one server's lifetime."""
        ...

    @property
    def one_way(self) -> bool:
        """Whether no peer waits for the answer; it must be given anyway, so that credit is returned."""
        ...

    @property
    def body_bytes(self) -> int:
        """Length of the body, wherever it was received."""
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
"""Called on the loop for every request; must not block. An exception that it raises is answered with INTERNAL."""


class Arrival(Protocol):
    """Uses a request's body while the rest of it is still arriving."""

    @property
    def stops(self) -> Sequence[int]:
        """Where its pieces end, in bytes from the body's start: at least one, ascending, none beyond the body's end."""
        ...

    def arrived(self, piece: int, data: memoryview) -> bool:
        """Takes the piece that ends at `stops[piece]`, still in cache. Called once per piece, in order, on the loop.

        Returns whether the piece was used: the content of its place in the request's body is then undefined. `data` is
        valid until the return. The connection may end before the next piece arrives.
        """
        ...


ArrivalHandler: TypeAlias = Callable[[Request], Arrival | None]
"""Called on the loop when all of a request except its large body has arrived; `body` is where that will be. The request
must not be answered: it goes to the `Handler` when complete, if ever. Return None to do nothing meanwhile."""


PlacingHandler: TypeAlias = Callable[[Request], memoryview | None]
"""Called on the loop when all of a one-way request except its body has arrived: returns where the body is to be
received, writable and of its length, None for a buffer of the server's. `Request.body` stays empty if it is placed. The
request must not be answered: it goes to the `Handler` when complete. An error ends the connection."""


class Connection(Protocol):
    """A connection to a peer that has answered our HELLO."""

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
            RemoteError: the peer refused; the connection stays open.
            ProtocolError: the peer broke the format; the connection is closed.
        """
        ...

    async def send_one_way(self, message: Message, body: Body = (), *, deadline_s: float) -> None:
        """Waits for credit and sends a request without an answer; returns when the kernel has taken it.

        Raises:
            DeadlineError, UnreachableError, ProtocolError: as `request`.
        """
        ...

    async def share(self, region: Region, *, deadline_s: float) -> bool:
        """Shares a region of our memory with the peer, once; returns whether requests on this connection may name it.

        Raises:
            DeadlineError, UnreachableError, ProtocolError: as `request`.
        """
        ...

    @property
    def kind(self) -> str:
        """`tcp`, `unix`, `memory`, or `shared`: a Unix socket over which memory was registered."""
        ...

    @property
    def secured(self) -> Secured | None:
        """Who both ends are by their certificates; None without TLS."""
        ...

    @property
    def closed(self) -> bool: ...

    async def wait_lost(self) -> str:
        """Waits until the connection is gone; returns why."""
        ...

    async def close(self) -> None: ...


class Server(Protocol):
    """A listening server. `addresses` are its actual addresses (ports filled in), `limits` its bounds."""

    addresses: tuple[str, ...]
    limits: ServerLimits

    def connections_by_kind(self) -> dict[str, int]:
        """Returns kind -> number of connections that have said HELLO; `shared` are those that registered memory."""
        ...

    @property
    def region_bytes(self) -> int:
        """Bytes of clients' memory that is mapped here."""
        ...

    async def close(self) -> None:
        """Stops listening and closes every connection."""
        ...


class Transport(Protocol):
    """Connects and serves. An address is `tcp://host:port`, `unix:///path` or, in tests, `memory://name`.

    Attributes:
        kind: which of a peer's addresses to use.
        server_limits: default bounds of servers.
    """

    kind: TransportKind
    server_limits: ServerLimits

    async def connect(
        self, address: str, hello: Hello, *, deadline_s: float, expects: tuple[str, str] = ANYONE
    ) -> Connection:
        """Connects, as `hello`. `expects`: role and node that must be there, by its certificate, if there is TLS.

        Raises UnreachableError (with the address), DeadlineError, HandshakeError."""
        ...

    async def serve(
        self,
        addresses: Sequence[str],
        identity: Hello,
        handler: Handler,
        *,
        on_disconnect: Callable[[int], None] | None = None,
        arriving: ArrivalHandler | None = None,
        placing: PlacingHandler | None = None,
        limits: ServerLimits | None = None,
    ) -> Server:
        """Listens on all addresses. `identity` gives this side's role, node, incarnation and required token.

        `arriving` is called for requests with large bodies before the bodies arrive, `placing` for one-way requests.

        Raises:
            ConfigurationError: an address is malformed or taken; the message names it and says what to do.
        """
        ...

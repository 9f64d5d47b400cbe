"""The base of all typed headers, and those that every role understands."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 44)]
"""How often something happened: so small that a receiver's sum of all that it hears stays a number of the wire."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of every typed header."""


class Hello(Message, frozen=True):
    """First frame of a connection, from the connecting side.

    Within a process it is also the identity passed to `Transport.connect` and `Transport.serve`, and `token` is then
    the cluster's secret. On the wire `token` is empty: `adamctl.net.handshake` removes it. `nonce` says that the client
    has a token and asks the server to prove that it has the same.
    """

    version_lowest: int
    version_highest: int
    features: tuple[str, ...]
    role: str
    node: str
    incarnation: int
    token: str = ""
    nonce: bytes = b""
    cluster: str = ""

    def __repr__(self) -> str:
        """Omits the token, which must not appear in logs."""
        return f"Hello({self.role}/{self.node}, incarnation={self.incarnation}, cluster={self.cluster!r})"


class HelloReply(Message, frozen=True):
    """The answer: the common version, the common features, and how many body bytes may be in flight.

    With a `nonce`, the client must prove with PROVE that it has the token before the connection is open.
    """

    version: int
    features: tuple[str, ...]
    role: str
    node: str
    incarnation: int
    credit_bytes: int
    nonce: bytes = b""
    cluster: str = ""


class ProveRequest(Message, frozen=True):
    """The client's proof that it has the token, over everything that both sides said in HELLO."""

    proof: bytes


class ProveReply(Message, frozen=True):
    """The server's own proof."""

    proof: bytes


class ErrorReply(Message, frozen=True):
    """Typed header of a reply with the ERROR flag. `code` is an `ErrorCode`; `details` is for programs."""

    code: int
    message: str
    details: dict[str, Any] = {}


class StatusRequest(Message, frozen=True):
    """Asks any role for its status."""


class StatusReply(Message, frozen=True):
    """Plain values for people and programs; always has `role`, `node`, `incarnation`, `uptime_s`."""

    status: dict[str, Any]


class ShutdownRequest(Message, frozen=True):
    """Asks a role to leave and exit 0.

    `drain_s`: a parameter server first has what it holds moved to others, for at most so many seconds; what cannot be
    moved makes its exit code 1. 0: it leaves at once.
    """

    reason: str
    drain_s: float = 0.0


class MemoryRegisterRequest(Message, frozen=True):
    """Shares a region of the client's memory with the server, over a Unix socket: later requests name it by `number`.

    The region is the file that the client's process has open as `descriptor`: inode `number` on `device`, of at least
    `size_bytes`, sealed so that it cannot shrink. It belongs to the connection until that ends.
    """

    number: int
    device: int
    descriptor: int
    size_bytes: int


class Empty(Message, frozen=True):
    """An answer that says only that the request was carried out."""


class CreditGrant(Message, frozen=True):
    """One-way: the receiver of bodies has freed this many bytes of the credit in `HelloReply`."""

    released_bytes: int


class BenchBlockRequest(Message, frozen=True):
    """A block that is received into a pooled buffer and dropped; `acknowledge` asks for an answer."""

    number: int
    acknowledge: bool = False

"""Typed headers that every role understands."""

from __future__ import annotations

from typing import Any

from adamctl.wire.messages.base import Message


class Hello(Message, frozen=True):
    """First frame of a connection, from the one who connects."""

    version_lowest: int
    version_highest: int
    features: tuple[str, ...]
    role: str
    node: str
    incarnation: int
    token: str = ""


class HelloReply(Message, frozen=True):
    """The answer: the version both speak, the common features, and how many body bytes may be in flight."""

    version: int
    features: tuple[str, ...]
    role: str
    node: str
    incarnation: int
    credit_bytes: int


class ErrorReply(Message, frozen=True):
    """Typed header of a reply with the ERROR flag. `code` is an `ErrorCode`; `details` is for programs."""

    code: int
    message: str
    details: dict[str, Any] = {}


class StatusRequest(Message, frozen=True):
    """Asks any role how it is."""


class StatusReply(Message, frozen=True):
    """Plain values for people and programs; always has `role`, `node`, `incarnation`, `uptime_s`."""

    status: dict[str, Any]


class ShutdownRequest(Message, frozen=True):
    """Asks a role to leave and exit 0."""

    reason: str


class MemoryRegisterRequest(Message, frozen=True):
    """Shows the server a region of the client's memory, over a Unix socket: `number` names it in later requests.

    The region is the file that the client's process has open as `descriptor`: inode `number` on `device`, of at least
    `size_bytes`, sealed so that it cannot shrink. It is the connection's until that ends.
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

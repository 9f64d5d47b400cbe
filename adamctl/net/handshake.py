"""The HELLO exchange, shared by streams and the in-memory twin: what is asked, and why a peer is refused."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from adamctl.errors import AdamctlError, HandshakeError, RemoteError, UnreachableError
from adamctl.wire.constants import VERSION_HIGHEST, VERSION_LOWEST, ErrorCode
from adamctl.wire.messages import ErrorReply, Hello, HelloReply

SHARED_MEMORY = "shared-memory"
"""The server takes MEMORY_REGISTER, over Unix sockets, and requests that name a region."""

SIXTEEN_BIT = "sixteen-bit"
"""Pushes and pulls may travel as bfloat16 and float16."""

STEPS = "steps"
"""A parameter server knows parts of steps, and holds them back until they are complete."""

FEATURES: tuple[str, ...] = (SHARED_MEMORY, SIXTEEN_BIT, STEPS)
"""What this build can do beyond version 1 of the protocol."""

_RETRY_CAN_HELP = frozenset({ErrorCode.OVER_QUOTA, ErrorCode.SHUTTING_DOWN, ErrorCode.DEADLINE_PASSED})


def make_hello(
    role: str, node: str, incarnation: int = 0, token: str = "", features: Sequence[str] = FEATURES
) -> Hello:
    """Returns the HELLO of this build, for `Transport.connect` and as the identity of `Transport.serve`."""
    return Hello(VERSION_LOWEST, VERSION_HIGHEST, tuple(features), role, node, incarnation, token)


def answer_hello(identity: Hello, hello: Hello, credit_bytes: int) -> HelloReply:
    """Returns the answer of a server to a client's HELLO.

    Raises:
        RemoteError: it is refused; code and message are to be sent before the connection is closed.
    """
    # Both comparisons are made before either is reported, and the token's takes the same time whatever it is.
    token_right = hmac.compare_digest(identity.token.encode(), hello.token.encode())
    version = min(identity.version_highest, hello.version_highest)
    if version < max(identity.version_lowest, hello.version_lowest):
        raise RemoteError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"this {identity.role} speaks versions {identity.version_lowest} to {identity.version_highest}, "
            f"the {hello.role} speaks {hello.version_lowest} to {hello.version_highest}; update the older side",
        )
    if not token_right:
        raise RemoteError(
            ErrorCode.WRONG_TOKEN,
            f"the token is not the one that this {identity.role} expects; give every process of a cluster the same",
        )
    features = tuple(name for name in identity.features if name in hello.features)
    return HelloReply(version, features, identity.role, identity.node, identity.incarnation, credit_bytes)


def check_hello_reply(hello: Hello, reply: HelloReply, address: str) -> None:
    """Raises HandshakeError if a server's answer is not one to what we asked."""
    if not hello.version_lowest <= reply.version <= hello.version_highest:
        raise HandshakeError(
            f"{address} chose version {reply.version}, offered were {hello.version_lowest} to {hello.version_highest}"
        )
    if reply.credit_bytes < 1:
        raise HandshakeError(f"{address} allows no credit: expected at least 1 byte, found {reply.credit_bytes}")


def refusal(address: str, error: ErrorReply) -> AdamctlError:
    """Returns what `connect` raises when a server answered HELLO with an error, or ended the connection with one."""
    text = f"{address} refused the connection: {error.message}"
    return UnreachableError(text) if error.code in _RETRY_CAN_HELP else HandshakeError(text)

"""The HELLO exchange, shared by streams and the in-memory twin: which peers are accepted, and why others are refused.

If there is a token, both sides prove that they have it and neither sends it: HELLO and its answer each carry a nonce,
PROVE and its answer an HMAC with the token as its key, over what both have said. The client proves first. A proof names
the side that makes it and covers both nonces, so it cannot be reused by another peer, later, or in the other direction.

Pure: nonces are passed in, and so is whether the peer is trusted without a token because the system vouches for it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import msgspec

from adamctl.errors import AdamctlError, HandshakeError, ProofError, RemoteError, UnreachableError, WrongClusterError
from adamctl.wire.constants import VERSION_HIGHEST, VERSION_LOWEST, ErrorCode
from adamctl.wire.messages import ErrorReply, Hello, HelloReply, ProveReply, ProveRequest

SHARED_MEMORY = "shared-memory"
"""The server accepts MEMORY_REGISTER, over Unix sockets, and requests that name a region."""

SIXTEEN_BIT = "sixteen-bit"
"""Pushes and pulls may be sent as bfloat16 and float16."""

STEPS = "steps"
"""The parameter server understands parts of steps, and holds them until they are complete."""

FEATURES: tuple[str, ...] = (SHARED_MEMORY, SIXTEEN_BIT, STEPS)
"""Features of this build beyond version 1 of the protocol."""

NONCE_BYTES = 32
TOKEN_ADVICE = "give --token-file FILE or set ADAMCTL_TOKEN"  # advice, not a token

_RETRY_CAN_HELP = frozenset(
    {ErrorCode.OVER_QUOTA, ErrorCode.SHUTTING_DOWN, ErrorCode.DEADLINE_PASSED, ErrorCode.NOT_READY}
)


def make_hello(
    role: str, node: str, incarnation: int = 0, token: str = "", features: Sequence[str] = FEATURES, cluster: str = ""
) -> Hello:
    """Returns the identity of this build, for `Transport.connect` and `Transport.serve`.

    `token` stays in this process. `cluster` is the identity of this process's cluster, "" if not yet known.
    """
    return Hello(VERSION_LOWEST, VERSION_HIGHEST, tuple(features), role, node, incarnation, token, b"", cluster)


class ClientHandshake:
    """The side that connects.

    Args:
        identity: this side's identity and token.
        nonce: NONCE_BYTES random bytes, never used before.
        trusted: the system confirms that the same user is at the other end, so neither side proves anything.
    """

    def __init__(self, identity: Hello, nonce: bytes, *, trusted: bool) -> None:
        self._token = "" if trusted else identity.token
        self.hello = msgspec.structs.replace(identity, token="", nonce=nonce if self._token else b"")
        self._transcript = b""

    def replied(self, reply: HelloReply, address: str) -> ProveRequest | None:
        """Returns the next message to send; None if the connection is open.

        Raises:
            HandshakeError: the server's answer does not fit our HELLO.
            ProofError: only one side has a token.
            WrongClusterError: the server belongs to another cluster.
        """
        hello = self.hello
        if not hello.version_lowest <= reply.version <= hello.version_highest:
            offered = f"{hello.version_lowest} to {hello.version_highest}"
            raise HandshakeError(f"{address} chose version {reply.version}; expected one of the offered {offered}")
        if reply.credit_bytes < 1:
            raise HandshakeError(f"{address} allows no credit: expected at least 1 byte, found {reply.credit_bytes}")
        if hello.cluster and reply.cluster and hello.cluster != reply.cluster:
            raise WrongClusterError(f"{address}: {_other_cluster('this process', hello.cluster, reply.cluster)}")
        if not self._token and not reply.nonce:
            return None
        if not self._token:
            raise ProofError(f"{address} requires the cluster's token, and this process has none; {TOKEN_ADVICE}")
        if len(reply.nonce) != NONCE_BYTES:
            raise ProofError(
                f"{address} does not prove that it has this process's token: it has none, or has an earlier version; "
                "give every process of a cluster the same token and version"
            )
        self._transcript = _transcript(hello, reply)
        return ProveRequest(_proof(self._token, b"client", self._transcript))

    def proved(self, reply: ProveReply, address: str) -> None:
        """Raises ProofError if the server did not prove that it has the token."""
        if not hmac.compare_digest(_proof(self._token, b"server", self._transcript), reply.proof):
            raise ProofError(
                f"{address} has another token than this process; give every process of a cluster the same token"
            )


class ServerHandshake:
    """The side that listens; arguments as for `ClientHandshake`. `peer` is open to requests once `done`."""

    def __init__(self, identity: Hello, nonce: bytes, *, trusted: bool) -> None:
        self._identity = identity
        self._token = "" if trusted else identity.token
        self._trusted = trusted
        self._nonce = nonce
        self._transcript = b""
        self.done = False

    def greeted(self, hello: Hello, credit_bytes: int) -> HelloReply:
        """Returns the answer to a client's HELLO; with a nonce in it, the client must prove itself.

        Raises:
            RemoteError: it is refused; send code and message before closing the connection.
        """
        identity = self._identity
        version = min(identity.version_highest, hello.version_highest)
        if version < max(identity.version_lowest, hello.version_lowest):
            raise RemoteError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"this {identity.role} speaks versions {identity.version_lowest} to {identity.version_highest}, "
                f"the {hello.role} speaks {hello.version_lowest} to {hello.version_highest}; update the older side",
            )
        if not self._trusted and (problem := self._token_problem(hello)):
            raise RemoteError(ErrorCode.WRONG_TOKEN, problem)
        if hello.cluster and not identity.cluster and identity.role == "controller" != hello.role:
            raise RemoteError(
                ErrorCode.NOT_READY, "this controller does not know its cluster yet; try again, or another controller"
            )
        if hello.cluster and identity.cluster and hello.cluster != identity.cluster:
            text = _other_cluster(f"this {identity.role}", identity.cluster, hello.cluster)
            raise RemoteError(ErrorCode.WRONG_CLUSTER, text)
        reply = HelloReply(
            version,
            tuple(name for name in identity.features if name in hello.features),
            identity.role,
            identity.node,
            identity.incarnation,
            credit_bytes,
            self._nonce if self._token else b"",
            identity.cluster,
        )
        self._transcript = _transcript(hello, reply)
        self.done = not self._token
        return reply

    def _token_problem(self, hello: Hello) -> str:
        role = self._identity.role
        if hello.token:
            return (
                f"the {hello.role} sends its token, as earlier versions did; update it and replace the token: anyone "
                "who listened has this one"
            )
        if self._token and not hello.nonce:
            return f"this {role} requires the cluster's token, and the {hello.role} has none; {TOKEN_ADVICE}"
        if hello.nonce and not self._token:
            return (
                f"the {hello.role} has a token and this {role} has none; give every process of a cluster the same token"
            )
        if self._token and len(hello.nonce) != NONCE_BYTES:
            return f"expected a nonce of {NONCE_BYTES} bytes, found {len(hello.nonce)}"
        return ""

    def proved(self, request: ProveRequest) -> ProveReply:
        """Returns this side's own proof, after which the connection is open.

        Raises:
            RemoteError: the client has another token.
        """
        if not hmac.compare_digest(_proof(self._token, b"client", self._transcript), request.proof):
            raise RemoteError(
                ErrorCode.WRONG_TOKEN,
                f"the token is not the one that this {self._identity.role} expects; give every process of a cluster "
                "the same token",
            )
        self.done = True
        return ProveReply(_proof(self._token, b"server", self._transcript))


def refusal(address: str, error: ErrorReply) -> AdamctlError:
    """Returns the error for `connect` to raise when a server answered HELLO with an error, or ended with one."""
    text = f"{address} refused the connection: {error.message}"
    if error.code == ErrorCode.WRONG_CLUSTER:
        return WrongClusterError(text)
    if error.code in (ErrorCode.WRONG_TOKEN, ErrorCode.WRONG_IDENTITY):
        return ProofError(text)
    return UnreachableError(text) if error.code in _RETRY_CAN_HELP else HandshakeError(text)


def _other_cluster(who: str, own: str, other: str) -> str:
    return (
        f"{who} belongs to cluster {own[:8]}, the other side to cluster {other[:8]}; give it the address of its own "
        "cluster, or start it without the data that it kept from the other one"
    )


def _transcript(hello: Hello, reply: HelloReply) -> bytes:
    """Returns what both sides said, with each field delimited. Fields that are added later are not part of it."""
    return msgspec.msgpack.encode(
        [
            [hello.version_lowest, hello.version_highest, hello.features, hello.role, hello.node, hello.incarnation],
            [hello.nonce, hello.cluster],
            [reply.version, reply.features, reply.role, reply.node, reply.incarnation, reply.credit_bytes],
            [reply.nonce, reply.cluster],
        ]
    )


def _proof(token: str, side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(token.encode(), b"adamctl HELLO, " + side + b"\0" + transcript, hashlib.sha256)

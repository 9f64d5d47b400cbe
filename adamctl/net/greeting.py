"""How both ends of a connection carry out the handshake: frames, randomness, and the peer's user from the system."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from adamctl.config.names import NAME_CHARACTERS_MAX, NAME_EXPECTED, is_name
from adamctl.errors import HandshakeError, ProofError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.handshake import NONCE_BYTES, ClientHandshake, ServerHandshake, refusal
from adamctl.net.peer_user import is_own_user, peer_source
from adamctl.net.protocol import FrameProtocol
from adamctl.net.tls.identity import other_cluster, wrong_claim, wrong_peer
from adamctl.wire.codec import decode_message
from adamctl.wire.constants import ErrorCode, Opcode
from adamctl.wire.decoder import Frame
from adamctl.wire.messages import ErrorReply, Hello, HelloReply, Message, ProveReply, ProveRequest


class Asking(Protocol):
    """The part of the client's end of a connection that `greet` uses."""

    address: str
    """The server's address, for messages."""
    loop: asyncio.AbstractEventLoop

    async def call(
        self, message: Message, body: Sequence[Any], deadline_s: float, into: Sequence[memoryview] | None
    ) -> Any:
        """Sends a request and returns its reply, which has a `message`."""
        ...


async def greet(protocol: Asking, identity: Hello, deadline: float, *, trusted: bool) -> HelloReply:
    """Exchanges HELLO and proofs of the token, until `deadline` (loop.time()); returns the answer to HELLO.

    Raises as `Transport.connect` does.
    """

    async def ask(message: Message) -> Any:
        try:
            return (await protocol.call(message, (), max(deadline - protocol.loop.time(), 0.0), None)).message
        except RemoteError as error:
            raise refusal(protocol.address, ErrorReply(error.code, str(error))) from None

    handshake = ClientHandshake(identity, secrets.token_bytes(NONCE_BYTES), trusted=trusted)
    reply: HelloReply = await ask(handshake.hello)
    proof = handshake.replied(reply, protocol.address)
    if proof is not None:
        handshake.proved(await ask(proof), protocol.address)
    return reply


def check_listener(sock: Any, address: str) -> bool:
    """Returns True, or raises HandshakeError if another user listens at a Unix socket."""
    if not is_own_user(sock):
        raise HandshakeError(f"another user listens at {address}; roles on one machine must run as the same user")
    return True


def check_certificate(protocol: FrameProtocol, peer: HelloReply, expects: tuple[str, str]) -> None:
    """Checks that a server's certificate says what its answer to HELLO does, and that it is the one that we expect.

    Args:
        expects: role and node; empty: any.

    Raises:
        ProofError: its certificate does not allow what it says.
        UnreachableError: another process is at this address now.
    """
    secured = protocol.secured
    if secured is None:
        return
    if problem := wrong_claim(secured.own, secured.peer, peer.role, peer.node):
        raise ProofError(problem)
    if problem := wrong_peer(secured.own, secured.peer, (peer.role, peer.node), *expects):
        raise UnreachableError(problem)


class Greeting:
    """The server's end of a connection's handshake. `peer` is set by the first frame, and proven once `done`.

    `proof`: by what, in words.
    """

    peer: Hello

    def __init__(self, address: str) -> None:
        """`address` is the server's own address at which the connection was accepted."""
        self._address = address
        self._handshake: ServerHandshake | None = None
        self.proof = ""

    @property
    def done(self) -> bool:
        """Whether the peer may make requests."""
        return self._handshake is not None and self._handshake.done

    def answer(
        self, protocol: FrameProtocol, frame: Frame, identity: Hello, credit_bytes: int
    ) -> HelloReply | ProveReply:
        """Returns the answer to the next frame of the peer at the other end of `protocol`.

        Raises:
            ProtocolError: it is not the next frame of a handshake.
            RemoteError: the peer is refused.
        """
        head = frame.head
        expected = Opcode.HELLO if self._handshake is None else Opcode.PROVE
        if head.opcode != expected or head.flags:
            raise ProtocolError(f"expected {expected.name} first, found {Opcode(head.opcode).name}")
        message = decode_message(head.opcode, head.flags, frame.typed_header)
        if self._handshake is not None:
            assert isinstance(message, ProveRequest)
            return self._handshake.proved(message)
        assert isinstance(message, Hello)
        for name in (message.role, message.node):
            if not is_name(name):
                text = f"expected a role and a node name of {NAME_EXPECTED}; found {name[:NAME_CHARACTERS_MAX]!a}"
                raise RemoteError(ErrorCode.BAD_MESSAGE, text)
        trusted = self._trusted(protocol)
        if problem := _wrong_certificate(protocol, message):
            raise RemoteError(ErrorCode.WRONG_IDENTITY, problem)
        self.proof = _proof(protocol, trusted, identity)
        handshake = ServerHandshake(identity, secrets.token_bytes(NONCE_BYTES), trusted=trusted)
        reply = handshake.greeted(message, credit_bytes)
        self._handshake, self.peer = handshake, message
        return reply

    def _trusted(self, protocol: FrameProtocol) -> bool:
        """Whether the peer needs no token. Raises RemoteError: the peer is another user of this machine."""
        if protocol.secured is not None:
            return True  # a certificate says more than a token, which everyone has
        if not self._address.startswith("unix:"):
            return False
        if not is_own_user(protocol.socket):
            raise RemoteError(
                ErrorCode.WRONG_TOKEN,
                "another user is at the other end; over Unix sockets both sides must run as the same user",
            )
        return True


def _wrong_certificate(protocol: FrameProtocol, hello: Hello) -> str:
    """Returns why a peer's certificate does not allow what it says; empty if it does, or there is no TLS."""
    if protocol.secured is None:
        return ""
    own, peer = protocol.secured
    return other_cluster(own, peer, f"from {peer_source(protocol.socket)}") or wrong_claim(
        own, peer, hello.role, hello.node
    )


def _proof(protocol: FrameProtocol, trusted: bool, identity: Hello) -> str:
    if protocol.secured is not None:
        return f"certificate {protocol.secured.peer}"
    return "same user" if trusted else "token" if identity.token else "nothing"

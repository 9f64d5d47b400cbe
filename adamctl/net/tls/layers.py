"""Makes the TLS layers of one event loop's connections, from one process's certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from adamctl.net.protocol import FrameProtocol
from adamctl.net.server import StreamServer
from adamctl.net.tls.credentials import Credentials
from adamctl.net.tls.engine import RECEIVED_BYTES
from adamctl.net.tls.layer import TlsLayer
from adamctl.net.tls.refusals import must_speak_tls
from adamctl.wire.messages import Hello

_NAMED_BY_CERTIFICATE = frozenset({"front", "operator", "bench", "metrics"})
"""Roles that are never members: their nodes' names are no more than those of processes."""


class Layers:
    """Every new connection gets the newest certificate. Belongs to one event loop.

    Args:
        credentials: the process's certificate.
        chance: spreads the ends of connections whose certificates are no longer good.
    """

    def __init__(self, credentials: Credentials, chance: Random | None = None) -> None:
        self.credentials = credentials
        self._chance = chance or Random()
        self._received = memoryview(bytearray(RECEIVED_BYTES))  # each read is decrypted, or copied, before the next

    def client(self, protocol: FrameProtocol, where: str) -> TlsLayer:
        """Returns the layer below a connection that this process makes to `where`."""
        return self._layer(protocol, where, None)

    def server_factory(self, server: StreamServer, address: str) -> Callable[[], asyncio.BaseProtocol]:
        """Returns what makes the protocol of each connection that a server accepts at `address`."""
        make = server.protocol_factory(address)

        def accept() -> TlsLayer:
            identity = self.credentials.current.identity
            return self._layer(make(), address, must_speak_tls(server.identity.role, identity))

        return accept

    def named(self, hello: Hello) -> Hello:
        """Returns the HELLO of a process that is no member under a name that its certificate allows."""
        identity = self.credentials.current.identity
        if hello.role not in _NAMED_BY_CERTIFICATE or identity.speaks_for(hello.role, hello.node):
            return hello
        return msgspec.structs.replace(hello, node=identity.part(hello.node))

    def _layer(self, protocol: FrameProtocol, where: str, refusal: str | None) -> TlsLayer:
        return TlsLayer(
            protocol,
            self.credentials,
            self._received,
            where=where,
            refusal=refusal,
            chance=self._chance,
        )

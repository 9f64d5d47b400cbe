"""The transport over TCP and Unix sockets, used by the rest of the program.

transport = StreamTransport()
server = await transport.serve(["tcp://127.0.0.1:0"], identity, handler)
connection = await transport.connect(server.addresses[0], hello, deadline_s=5)
reply = await connection.request(StatusRequest(), deadline_s=5)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from adamctl.errors import ConfigurationError, DeadlineError, UnreachableError
from adamctl.net.address import Address, TransportKind, chosen_kind, parse_address
from adamctl.net.connection import ClientProtocol, StreamConnection
from adamctl.net.limits import ClientLimits, ServerLimits
from adamctl.net.pool import BufferPool
from adamctl.net.server import StreamServer
from adamctl.net.sockets import beyond_loopback, bind_tcp, bind_unix, is_insecure
from adamctl.net.tls.credentials import FROM_ENVIRONMENT, Credentials, chosen_credentials
from adamctl.net.tls.identity import ANYONE
from adamctl.net.tls.layers import Layers
from adamctl.net.transport import ArrivalHandler, Handler, PlacingHandler
from adamctl.wire.messages import Hello

_RETRY_INTERVAL_S = 0.02


class StreamTransport:
    """Implements `adamctl.net.transport.Transport`. Belongs to one event loop; create one per loop.

    Args:
        server_limits: bounds of every server it starts.
        client_limits: bounds of every connection it makes; the memory is shared by all of them.
        kind: which of a peer's addresses to use, and whether to share memory with it; default: ADAMCTL_TRANSPORT.
        tls: the certificate with which it speaks TLS over TCP; None: without TLS; default: that in ADAMCTL_TLS.
        insecure: whether it may listen beyond loopback without TLS, with a token; default: ADAMCTL_INSECURE.
    """

    def __init__(
        self,
        server_limits: ServerLimits | None = None,
        client_limits: ClientLimits | None = None,
        kind: TransportKind | None = None,
        tls: Credentials | str | None = FROM_ENVIRONMENT,
        insecure: bool | None = None,
    ) -> None:
        """Raises ConfigurationError: ADAMCTL_TRANSPORT has an unknown value, or a certificate cannot be used."""
        self.kind: TransportKind = kind or chosen_kind()
        self.server_limits = server_limits or ServerLimits()
        self.client_limits = client_limits or ClientLimits()
        self.pool = BufferPool(self.client_limits.memory_bytes_max)
        self.tls = chosen_credentials(tls, os.environ)
        self.insecure = is_insecure(os.environ) if insecure is None else insecure
        self._layers = None if self.tls is None else Layers(self.tls)

    async def connect(
        self, address: str, hello: Hello, *, deadline_s: float, expects: tuple[str, str] = ANYONE
    ) -> StreamConnection:
        """Connects and says HELLO; see `adamctl.net.transport.Transport.connect`.

        Raises:
            ConfigurationError: the address is malformed.
            UnreachableError: nothing listens there, or the server has no room.
            DeadlineError: it took longer than `deadline_s` seconds.
            HandshakeError: the server refuses us, or we refuse it: wrong token, version or certificate.
        """
        target = parse_address(address)
        if target.scheme == "memory":
            raise ConfigurationError(f"{address} can only be reached inside one process's tests")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        protocol = ClientProtocol(loop, self.pool, self.client_limits, str(target))
        below: asyncio.BaseProtocol = protocol
        secure = self._layers is not None and target.scheme == "tcp"
        if self._layers is not None and secure:
            below, hello = self._layers.client(protocol, str(target)), self._layers.named(hello)
        try:
            async with asyncio.timeout_at(deadline):
                try:
                    await _open(loop, target, below)
                except BaseException:
                    protocol.let_go()
                    raise
        except TimeoutError:
            raise DeadlineError(f"{target} did not accept a connection within {deadline_s:g} s; is it up?") from None
        except OSError as error:
            raise UnreachableError(f"cannot reach {target}: {error.strerror or error}; is it up?") from error
        shares = target.scheme == "unix" and self.kind in ("auto", "shared")
        return await StreamConnection.greeted(
            protocol, hello, deadline, scheme=target.scheme, shares=shares, expects=expects, secure=secure
        )

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
    ) -> StreamServer:
        """Listens on all addresses; see `adamctl.net.transport.Transport.serve`.

        Raises:
            ConfigurationError: an address is malformed or taken; the message names it and says what to do.
        """
        targets = [parse_address(address) for address in addresses]
        if self._layers is not None:
            identity = self._layers.named(identity)
        server = StreamServer(identity, handler, limits or self.server_limits, on_disconnect, arriving, placing)
        try:
            for target in targets:
                await self._listen(server, target)
        except BaseException:
            await server.close()
            raise
        return server

    async def _listen(self, server: StreamServer, target: Address) -> None:
        loop = server.loop
        if target.scheme == "tcp":
            open_to = beyond_loopback(server.identity.token, tls=self._layers is not None, insecure=self.insecure)
            sock, bound = await bind_tcp(target, only_loopback=open_to)
            make: Callable[[], asyncio.BaseProtocol] = server.protocol_factory(str(bound))
            if self._layers is not None:
                make = self._layers.server_factory(server, str(bound))
            listener = await loop.create_server(make, sock=sock, backlog=server.limits.backlog)
            server.listening(str(bound), listener.close)
        elif target.scheme == "unix":
            sock, remove = bind_unix(target)
            listener = await loop.create_unix_server(
                server.protocol_factory(str(target)), sock=sock, backlog=server.limits.backlog
            )

            def close() -> None:
                listener.close()
                remove()

            server.listening(str(target), close)
        else:
            raise ConfigurationError(f"cannot listen on {target} outside one process's tests")


async def _open(loop: asyncio.AbstractEventLoop, target: Address, protocol: asyncio.BaseProtocol) -> None:
    if target.scheme == "tcp":
        await loop.create_connection(lambda: protocol, target.host, target.port)
        return
    while True:
        try:
            await loop.create_unix_connection(lambda: protocol, target.path)
            return
        except BlockingIOError:  # the queue of a Unix socket is full: one cannot wait for it, only retry
            await asyncio.sleep(_RETRY_INTERVAL_S)

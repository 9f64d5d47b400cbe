"""The in-memory twin of `adamctl.net.stream`: its protocol code unchanged, over pipes whose faults come from one seed.

    network = MemoryNetwork(Random(seed), LinkFaults(loss=0.1))
    server = await network.serve(["memory://ps-0"], identity, handler)
    connection = await network.connect("memory://ps-0", hello, deadline_s=5)
    network.partition("worker-0", "ps-0")

Nodes are named by the `node` of their HELLO. Frames are sent singly: unlike on a stream, one can be lost, duplicated or
overtaken while the connection stays open. HELLO and the end of a connection are only delayed or, by a partition, cut
off. Time is the running loop's; under `adamctl.net.testing.virtual_clock` a seed repeats its run exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from adamctl.errors import ConfigurationError, DeadlineError, UnreachableError
from adamctl.net.address import TransportKind, parse_address
from adamctl.net.connection import ClientProtocol, StreamConnection
from adamctl.net.limits import ClientLimits, ServerLimits
from adamctl.net.pool import BufferPool
from adamctl.net.protocol import FrameProtocol
from adamctl.net.server import StreamServer
from adamctl.net.testing.faults import FaultPlan, LinkFaults
from adamctl.net.testing.memory_pipe import MemoryPipe, join_pipes
from adamctl.net.tls.credentials import Credentials
from adamctl.net.tls.identity import ANYONE
from adamctl.net.tls.layer import TlsLayer
from adamctl.net.tls.layers import Layers
from adamctl.net.transport import ArrivalHandler, Handler, PlacingHandler
from adamctl.wire.messages import Hello


class MemoryNetwork:
    """Implements `adamctl.net.transport.Transport` for all nodes of a test, on one loop.

    Args:
        random: the only source of randomness; everything is drawn from it in the order of events.
        faults: faults of every link without its own.
        tls: gives the certificate of whoever says HELLO so, or serves so; connections then speak TLS. They carry a
            stream of bytes instead of frames, so nothing in them is lost, doubled or overtaken, but by a partition.

    Attributes:
        trace: everything sent, if `keep_trace`: (time, from, to, what, copies that will arrive).
    """

    def __init__(
        self,
        random: Random,
        faults: LinkFaults | None = None,
        *,
        server_limits: ServerLimits | None = None,
        client_limits: ClientLimits | None = None,
        keep_trace: bool = False,
        tls: Callable[[Hello], Credentials] | None = None,
    ) -> None:
        self.plan = FaultPlan(random, faults or LinkFaults())
        self.server_limits = server_limits or ServerLimits()
        self.client_limits = client_limits or ClientLimits()
        self.kind: TransportKind = "auto"
        self.trace: list[tuple[float, str, str, str, int]] = []
        self.pool = BufferPool(self.client_limits.memory_bytes_max)
        self._keep_trace = keep_trace
        self._tls = tls
        self._chance = Random(random.random()) if tls is not None else random
        self._layers: dict[str, Layers] = {}
        self._listeners: dict[str, StreamServer] = {}
        self._pipes: dict[MemoryPipe, str] = {}  # ends of live connections, and the node of each

    # --- faults -----------------------------------------------------------------------------------------------------

    def set_faults(self, faults: LinkFaults, source: str | None = None, destination: str | None = None) -> None:
        """Changes the behaviour of one direction between two nodes, or of all without their own."""
        link = None if source is None or destination is None else (source, destination)
        self.plan.set_faults(faults, link)

    def partition(self, source: str, destination: str, *, both_ways: bool = False) -> None:
        """From now on nothing from `source` arrives at `destination`, not even what is in flight."""
        self.plan.partition((source, destination))
        if both_ways:
            self.plan.partition((destination, source))

    def heal(self, source: str | None = None, destination: str | None = None) -> None:
        """Ends the partition of one direction, or, without arguments, all."""
        self.plan.heal(None if source is None or destination is None else (source, destination))

    def crash(self, node: str, *, silent: bool = False) -> None:
        """Ends a node as kill -9 does: its servers stop listening and its connections break.

        Args:
            silent: as if its machine lost power: its peers are not notified.
        """
        for name in [name for name, server in self._listeners.items() if server.identity.node == node]:
            del self._listeners[name]
        for pipe in [pipe for pipe, owner in self._pipes.items() if owner == node]:
            pipe.cut(tell_peer=not silent)

    # --- Transport --------------------------------------------------------------------------------------------------

    async def connect(
        self, address: str, hello: Hello, *, deadline_s: float, expects: tuple[str, str] = ANYONE
    ) -> StreamConnection:
        """See `adamctl.net.transport.Transport.connect`. Takes a delay each way; a partition makes it wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        target = parse_address(address)
        if target.scheme != "memory":
            raise ConfigurationError(f"expected memory://name, found {address!r}")
        protocol = ClientProtocol(loop, self.pool, self.client_limits, address, lossy=True)
        try:
            async with asyncio.timeout_at(deadline):
                try:
                    await self._open(target.path, hello, protocol)
                except BaseException:
                    protocol.let_go()
                    raise
        except TimeoutError:
            raise DeadlineError(f"{address} did not accept a connection within {deadline_s:g} s; is it up?") from None
        secure = self._tls is not None
        if secure:
            hello = self._layers_of(hello).named(hello)
        return await StreamConnection.greeted(protocol, hello, deadline, expects=expects, secure=secure)

    def _layers_of(self, hello: Hello) -> Layers:
        """Returns what makes the layers of a node's connections."""
        assert self._tls is not None
        if hello.node not in self._layers:
            self._layers[hello.node] = Layers(self._tls(hello), self._chance)
        return self._layers[hello.node]

    async def _open(self, name: str, hello: Hello, protocol: ClientProtocol) -> None:
        node = hello.node
        server = self._listeners.get(name)
        peer = server.identity.node if server is not None else name
        delay_s = self.plan.delay((node, peer)) + self.plan.delay((peer, node))
        await asyncio.sleep(delay_s)
        if self.plan.is_partitioned((node, peer)) or self.plan.is_partitioned((peer, node)):
            await asyncio.get_running_loop().create_future()  # no reply comes: the deadline ends it
        if self._listeners.get(name) is not server or server is None:
            raise UnreachableError(f"cannot reach memory://{name}: nothing listens there; is it up?")
        near: FrameProtocol | TlsLayer = protocol
        accepted: Any = server.protocol_factory(f"memory://{name}")()
        if self._tls is not None:
            near = self._layers_of(hello).client(protocol, f"memory://{name}")
            accepted = self._layers_of(server.identity).server_factory(server, f"memory://{name}")()
        ours, theirs = join_pipes(self.plan, self._note, (node, peer), near, accepted)
        self._pipes[ours], self._pipes[theirs] = node, peer
        ours.on_lost = theirs.on_lost = self._forget
        accepted.connection_made(theirs)
        near.connection_made(ours)

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
        """See `adamctl.net.transport.Transport.serve`."""
        names = []
        for address in addresses:
            target = parse_address(address)
            if target.scheme != "memory":
                raise ConfigurationError(f"expected memory://name, found {address!r}")
            if target.path in self._listeners:
                raise ConfigurationError(f"{address} is taken by another server; choose another name")
            names.append(target.path)
        # Nothing stalls half-way on this network, and an endless timer would hide a deadlock.
        limits = limits or self.server_limits
        server = StreamServer(identity, handler, limits, on_disconnect, arriving, placing, sweep=False)
        for name in names:
            self._listeners[name] = server
            server.listening(f"memory://{name}", lambda name=name: self._unlisten(name, server))  # type: ignore[misc]
        return server

    def _unlisten(self, name: str, server: StreamServer) -> None:
        if self._listeners.get(name) is server:
            del self._listeners[name]

    def _forget(self, pipe: MemoryPipe) -> None:
        self._pipes.pop(pipe, None)

    def _note(self, source: str, destination: str, what: str, copies: int) -> None:
        if self._keep_trace:
            self.trace.append((asyncio.get_running_loop().time(), source, destination, what, copies))

"""What one client's pushes, pulls and checkpoints share: its job, its numbers, the routing, connections to servers.

It attaches to the servers, and attaches again after a lost connection; its users decide what to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from adamctl.config.records import AddressKind
from adamctl.errors import AdamctlError, ConfigurationError, DeadlineError, RemoteError, UnreachableError
from adamctl.model.layout import ParameterLayout
from adamctl.net.address import prefer
from adamctl.net.handshake import STEPS
from adamctl.net.transport import Connection, Reply, Transport
from adamctl.roles.ps.client.cost_estimate import Measurements
from adamctl.roles.ps.client.push_set import Numbers
from adamctl.roles.ps.client.reroute import Rerouting, pause
from adamctl.roles.ps.client.rollback import PushUnderWay, Rollbacks, settled_body, settled_numbers
from adamctl.roles.ps.client.route_table import Route, RouteTable
from adamctl.roles.ps.client.routing import JobRouting, ReadableStore, read_node, read_routing
from adamctl.roles.ps.client.server_channel import ServerChannel
from adamctl.roles.ps.client.shared_memory import SharedArrays
from adamctl.roles.ps.client.wire_choice import WireChoice
from adamctl.roles.ps.core.admission import STILL_BUILDING
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachReply, AttachRequest, Hello

SPEAK_AFTER_S = 2.0
CONNECT_S = 5.0
_WAIT_CODES = (ErrorCode.NOT_READY, ErrorCode.UNKNOWN_JOB, ErrorCode.NEWER_EPOCH, ErrorCode.SHUTTING_DOWN)


ShardsChosen: TypeAlias = Callable[[ParameterLayout], Iterable[int]]
"""Returns the shards that a client uses."""


class Session:
    """See the module. `ParameterClient` describes the arguments.

    Attributes:
        layout: the job's layout; known after `attach`.
        routing: which server holds what, as last read.
        issued: per shard, the last sequence number given out.
        chosen: the shards that this client pulls and attaches for; None: all.
        pushes: pushes in flight, by the tasks that deliver them.
        shared: memory from which servers on this machine read pushes directly and into which they write pulls.
        measured: how busy the servers are and how fast the network is.
        rerouting: reads the routing again, but not too often.
        rollbacks: pushes that were acknowledged to this client and then lost.
    """

    def __init__(
        self,
        transport: Transport,
        hello: Callable[[], Hello],
        store: ReadableStore,
        job: str,
        *,
        notice: Callable[[str], None],
        attempt_s: float,
        wire: WireChoice,
        connections: int = 1,
        in_step: bool = False,
        choose: ShardsChosen | None = None,
    ) -> None:
        self.job = job
        self._choose = choose
        self.chosen: tuple[int, ...] | None = None
        self.layout: ParameterLayout
        self.routing: JobRouting
        self.issued: Numbers = np.zeros(0, np.int64)
        self.attempt_s = attempt_s
        self.transport, self.hello, self.store = transport, hello, store
        self.notice = notice
        self.in_step = in_step
        self.wire = wire
        self.shared = SharedArrays()
        self.pushes: dict[asyncio.Task[None], PushUnderWay] = {}
        self.measured = Measurements()
        self.rollbacks = Rollbacks(job, notice)
        self._table = RouteTable(connections)
        self._channels: dict[Route, ServerChannel] = {}
        self.rerouting = Rerouting(self._read_routing)

    # --- attach ------------------------------------------------------------------------------------------------------

    async def attach(self, *, deadline_s: float) -> None:
        """See `ParameterClient.attach`."""
        loop = asyncio.get_running_loop()
        started = since = loop.time()
        spoken = False
        attempt = 0
        last: AdamctlError | None = None
        while True:
            try:
                async with asyncio.timeout_at(since + deadline_s):
                    await self._attach_once()
                return
            except TimeoutError as error:
                if isinstance(last, RemoteError) and last.code == ErrorCode.UNKNOWN_JOB:
                    raise last from error
                cause = last or self.troubles()
                raise DeadlineError(f"job {self.job!r}: could not attach within {deadline_s:g} s: {cause}") from error
            except (UnreachableError, RemoteError) as error:
                if isinstance(error, RemoteError) and error.code not in _WAIT_CODES:
                    raise
                last = error
                if isinstance(error, RemoteError) and STILL_BUILDING in error.details:
                    since = loop.time()  # which takes as long as it takes
                waited_s = loop.time() - started
                if waited_s >= SPEAK_AFTER_S and not spoken:
                    spoken = True
                    self.notice(f"waiting for the servers of job {self.job!r} for {waited_s:.0f} s so far: {error}")
            await pause(attempt, copies=bool(self._channels) and self.copies)
            attempt += 1

    async def _attach_once(self) -> None:
        routing = await read_routing(self.store, self.job, table=self._table)
        if not self.issued.size:
            self.layout = routing.layout
            self.issued = np.zeros(len(routing.layout.shards), np.int64)
        self.routing = routing
        if self._choose is not None:
            self.chosen = tuple(sorted(self._choose(routing.layout)))
        await self.wire.begin(routing.layout)
        routes = routing.runs if self.chosen is None else {routing.route_of(shard) for shard in self.chosen}
        await gather_all(self.channel(*route).connected() for route in routes)

    def troubles(self) -> str:
        """Returns why servers do not answer, as far as known."""
        found = [f"{channel.node}: {channel.trouble}" for channel in self._channels.values() if channel.trouble]
        return "; ".join(found) or "its parameter servers do not answer"

    # --- connections -------------------------------------------------------------------------------------------------

    def channel(self, server: str, connection: int = 0) -> ServerChannel:
        route = Route(server, connection)
        if route not in self._channels:
            self._channels[route] = ServerChannel(server, self._connect, connection)
        return self._channels[route]

    def transports(self) -> dict[str, str]:
        """Returns the kind of connection to each server: `shared`, `unix`, `tcp`, or an empty text if not connected."""
        return {channel.node: channel.kind for channel in self._channels.values()}

    async def _connect(self, node: str) -> Connection:
        """Looks a server up, connects and attaches; learns which of this client's numbers it already has."""
        connection = await self.reach(node, "clients")
        try:
            self.wire.check(node, connection.peer.features)
            if self.in_step and STEPS not in connection.peer.features:
                what = f"expected parameter server {node} to support pushes in steps; found an older version"
                raise ConfigurationError(f'{what}; update it, or set train.consistency = "async"')
            await self._attach_to(node, connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _attach_to(self, node: str, connection: Connection) -> None:
        """Binds a connection to the job and tells the server which of our numbers are settled; may be repeated."""
        request = AttachRequest(self.job, self.routing.record.layout_hash)
        settled = settled_body(self.settled(), self.routing.servers.get(node, ()))
        reply = await connection.request(request, settled, deadline_s=self.attempt_s)
        assert isinstance(reply.message, AttachReply)
        self.rollbacks.told(node, connection.peer.incarnation, reply.message.rolled_back)
        if len(reply.body):
            known = np.frombuffer(reply.body, "<i8").reshape(-1, 2)
            fresh = known[self.issued[known[:, 0]] == 0]
            self.issued[fresh[:, 0]] = fresh[:, 1]
            reply.release()

    async def tell_numbers(self, channel: ServerChannel) -> None:
        """Tells a server our numbers again, if it can be reached."""
        with suppress(UnreachableError, RemoteError):
            await self._attach_to(channel.node, await channel.connected())

    async def reach(self, node: str, kind: AddressKind) -> Connection:
        """Looks a server up and connects to its address for this kind of request."""
        try:
            record = await read_node(self.store, node)
        except UnreachableError:
            if not self.copies:  # its buckets may have moved before it left, and it can tell nobody any more
                with suppress(RemoteError):
                    await self.look()
            raise
        address = prefer(record.addresses_for(kind), record.host, self.transport.kind)
        return await self.transport.connect(
            address, self.hello(), deadline_s=CONNECT_S, expects=(record.role, record.node)
        )

    def settled(self) -> Numbers:
        """Returns, per shard, the number up to which all of our pushes are answered."""
        return settled_numbers(self.issued, self.pushes.values())

    # --- routing -----------------------------------------------------------------------------------------------------

    async def _read_routing(self) -> None:
        self.routing = await read_routing(self.store, self.job, self.layout, self._table)

    async def reread(self) -> None:
        """Reads the routing again, once for all concurrent callers. Raises what the reading raises."""
        await self.rerouting.read()

    async def look(self) -> None:
        """Reads the routing again after a failure, if that is quick. Raises RemoteError if the job has ended."""
        await self.rerouting.look()

    async def answer(
        self, channel: ServerChannel, request: Coroutine[Any, Any, Reply], shards: Collection[int]
    ) -> Reply:
        """Returns the answer to a request about `shards`; abandons it if another server takes over meanwhile."""
        if not self.copies:
            return await request
        route = Route(channel.node, channel.connection)

        def moved() -> bool:
            return any(self.routing.route_of(shard) != route for shard in shards)

        try:
            return await self.rerouting.answer(request, moved)
        except UnreachableError as error:
            channel.trouble = str(error)
            raise

    async def pause(self, attempt: int) -> None:
        """Waits before retry number `attempt` (from 0)."""
        await pause(attempt, copies=self.copies)

    @property
    def copies(self) -> bool:
        """Whether buckets have copies, so that another server can take over from a lost one."""
        return self.routing.record.replication > 1

    async def close(self) -> None:
        """Closes the connections."""
        await self.rerouting.close()
        self.wire.close()
        for channel in self._channels.values():
            await channel.drop()


async def gather_all(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Runs all at once; if one fails, cancels the others and raises its error."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()

"""How workers, coordinators and tools use a job's parameters: attach, push, pull, checkpoint.

One client per (node, incarnation) and job; all calls on one event loop. Each shard stays on one connection, of one or
more to its server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from adamctl.config.names import derived_name
from adamctl.config.records import AddressKind
from adamctl.errors import (
    AdamctlError,
    BackpressureError,
    ConfigurationError,
    DeadlineError,
    RemoteError,
    UnreachableError,
)
from adamctl.kernels.operation import Array
from adamctl.model.layout import ParameterLayout
from adamctl.model.protocol import servers_of_tensors
from adamctl.model.wire_types import WireType
from adamctl.net.address import prefer
from adamctl.net.handshake import STEPS
from adamctl.net.transport import Connection, Reply, Transport
from adamctl.roles.ps.checkpoint_files import load_parameters, read_checkpoint
from adamctl.roles.ps.client.checkpoint import gather_all, order_checkpoint
from adamctl.roles.ps.client.cost_estimate import Measurements
from adamctl.roles.ps.client.delivery import Delivery, RefusedPart
from adamctl.roles.ps.client.outcomes import PendingPush, PushOutcome, mark_retrieved
from adamctl.roles.ps.client.pull import Pulled, Puller
from adamctl.roles.ps.client.push_set import Base, Numbers, PushSet
from adamctl.roles.ps.client.reroute import Rerouting, pause
from adamctl.roles.ps.client.rollback import Rollbacks, settled_body, settled_numbers
from adamctl.roles.ps.client.route_table import Way, WayTable
from adamctl.roles.ps.client.routing import JobRouting, ReadableStore, read_node, read_routing
from adamctl.roles.ps.client.server_channel import Lane
from adamctl.roles.ps.client.shared_memory import SharedArrays
from adamctl.roles.ps.client.wire_choice import WireChoice
from adamctl.roles.ps.core.sync_steps import Place
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachReply, AttachRequest, CheckpointFile, Hello

if TYPE_CHECKING:
    from adamctl.roles.context import RoleContext

__all__ = [
    "Base",
    "ParameterClient",
    "PendingPush",
    "Place",
    "Pulled",
    "PushOutcome",
    "PushSet",
    "RefusedPart",
    "load_parameters",
    "read_checkpoint",
]

SPEAK_AFTER_S = 2.0
CONNECT_S = 5.0
log = logging.getLogger(__name__)


class ParameterClient:
    """A job's parameters on however many servers.

    Attributes:
        layout: of the job; known after `attach`.
        routing: the last reading of who holds what.
        issued: per shard, the last sequence number given out.
        shared: memory from which servers on this machine take pushes, and into which they write pulls, themselves.
        measured: how busy its servers are and how fast the network.
        rerouting: reads who holds what anew, not too often.
        rollbacks: what was acknowledged to us and is lost.
    """

    def __init__(
        self,
        transport: Transport,
        hello: Callable[[], Hello],
        store: ReadableStore,
        job: str,
        *,
        notice: Callable[[str], None] | None = None,
        attempt_s: float = 10.0,
        pushes_max: int = 64,
        wire_push: WireType = "float32",
        wire_pull: WireType = "float32",
        connections: int = 1,
        in_step: bool = False,
    ) -> None:
        """Args:
        hello: identity to connect with; node and incarnation name this client in the servers' memory.
        store: the configuration service.
        notice: told what is being waited for; default: the log.
        attempt_s: an unanswered request is sent again after this long.
        pushes_max: pushes that may be unacknowledged at once.
        wire_push: what pushes travel as; 16-bit types take half of the bytes, and are rounded with error feedback.
        wire_pull: what pulls travel as; the servers go on in float32.
        connections: how many to each server; more than one where one cannot fill the network.
        in_step: pushes are to be parts of steps.
        """
        self.job = job
        self.layout: ParameterLayout
        self.routing: JobRouting
        self.issued: Numbers = np.zeros(0, np.int64)
        self.attempt_s = attempt_s
        self._transport, self._hello, self._store = transport, hello, store
        self._notice = notice or log.warning
        self._pushes_max = pushes_max
        self._in_step = in_step
        self.wire = WireChoice(wire_push, wire_pull)
        self.shared = SharedArrays()
        self._pushes = 0
        self.measured = Measurements()
        self.rollbacks = Rollbacks(job, self._notice)
        self._table = WayTable(connections)
        self._lanes: dict[Way, Lane] = {}
        self._deliveries: dict[asyncio.Task[None], Delivery] = {}
        self.rerouting = Rerouting(self._read_routing)

    @classmethod
    def from_context(cls, context: RoleContext, job: str, *, session: int = 0, **options: Any) -> ParameterClient:
        """Returns a client for a role: its transport, identity, controller and log.

        `session`: how many clients the process had before. What those gave up may reach servers late, and must not
        take the numbers of this one's pushes: servers know it by a name of its own.
        """
        assert context.controller is not None
        notice = options.pop("notice", context.log.warning)
        hello = _named(context.hello, f"session-{session}") if session else context.hello
        return cls(context.transport, hello, context.controller, job, notice=notice, **options)

    def sibling(self, number: int) -> ParameterClient:
        """Returns another client of the same job, not attached, with numbers and connections of its own.

        Where two parts of one step come from one process, each may have to wait for the other on the server.
        """
        return ParameterClient(
            self._transport,
            _named(self._hello, f"part-{number}"),
            self._store,
            self.job,
            notice=self._notice,
            attempt_s=self.attempt_s,
            wire_push=self.wire.push,
            wire_pull=self.wire.pull,
            in_step=self._in_step,
        )

    # --- attach ------------------------------------------------------------------------------------------------------

    async def attach(self, *, deadline_s: float = 60.0) -> None:
        """Reads the job's layout and buckets and attaches to every server that holds a part, waiting until all serve.

        Raises:
            DeadlineError: not all did within `deadline_s`; the message says which, and why.
            RemoteError: LAYOUT_MISMATCH, OVER_QUOTA, RUN_ENDED, DAMAGED_DATA; UNKNOWN_JOB at the end of the deadline.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        spoken = False
        attempt = 0
        last: AdamctlError | None = None
        while True:
            try:
                async with asyncio.timeout_at(started + deadline_s):
                    await self._attach_once()
                return
            except TimeoutError as error:
                if isinstance(last, RemoteError) and last.code == ErrorCode.UNKNOWN_JOB:
                    raise last from error
                cause = last or self._troubles()
                raise DeadlineError(f"job {self.job!r}: not attached after {deadline_s:g} s: {cause}") from error
            except (UnreachableError, RemoteError) as error:
                if isinstance(error, RemoteError) and error.code not in _WAIT_CODES:
                    raise
                last = error
                waited_s = loop.time() - started
                if waited_s >= SPEAK_AFTER_S and not spoken:
                    spoken = True
                    self._notice(f"waiting for the servers of job {self.job!r} since {waited_s:.0f} s: {error}")
            await pause(attempt, copies=bool(self._lanes) and self.copies)
            attempt += 1

    async def _attach_once(self) -> None:
        routing = await read_routing(self._store, self.job, table=self._table)
        if not self.issued.size:
            self.layout = routing.layout
            self.issued = np.zeros(len(routing.layout.shards), np.int64)
        self.routing = routing
        await self.wire.begin(routing.layout)
        await gather_all(self.lane(*way).connected() for way in routing.runs)

    def _troubles(self) -> str:
        found = [f"{lane.node}: {lane.trouble}" for lane in self._lanes.values() if lane.trouble]
        return "; ".join(found) or "its parameter servers do not answer"

    async def _connect(self, node: str) -> Connection:
        """Looks a server up, connects and attaches; learns which of our numbers it already has."""
        connection = await self.reach(node, "clients")
        try:
            self.wire.check(node, connection.peer.features)
            if self._in_step and STEPS not in connection.peer.features:
                what = f"expected parameter server {node} to know pushes that are parts of steps; found an older one"
                raise ConfigurationError(f'{what}; update it, or set train.consistency = "async"')
            await self.attach_to(node, connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def attach_to(self, node: str, connection: Connection) -> None:
        """Binds a connection to the job, and tells the server of our numbers that are settled; again does no harm."""
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

    async def reach(self, node: str, kind: AddressKind) -> Connection:
        """Looks a server up and connects to where it takes a kind of request."""
        record = await read_node(self._store, node)
        address = prefer(record.addresses_for(kind), record.host, self._transport.kind)
        return await self._transport.connect(address, self._hello(), deadline_s=CONNECT_S)

    def settled(self) -> Numbers:
        """Returns, per shard, the last of our numbers up to which we know what became of every push."""
        return settled_numbers(self.issued, self._deliveries.values())

    def lane(self, server: str, connection: int = 0) -> Lane:
        way = Way(server, connection)
        if way not in self._lanes:
            self._lanes[way] = Lane(server, self._connect, connection)
        return self._lanes[way]

    def transports(self) -> dict[str, str]:
        """Returns the kind of connection to each server: `shared`, `unix`, `tcp`, or nothing while there is none."""
        return {lane.node: lane.kind for lane in self._lanes.values()}

    async def _read_routing(self) -> None:
        self.routing = await read_routing(self._store, self.job, self.layout, self._table)

    async def reread(self) -> None:
        """Reads the routing anew, once for all who ask at the same time. Raises what that raises."""
        await self.rerouting.read()

    async def look(self) -> None:
        """Reads the routing anew if that can be done soon, because something failed. RemoteError: the job has ended."""
        await self.rerouting.look()

    async def answer(self, lane: Lane, request: Coroutine[Any, Any, Reply], shards: Collection[int]) -> Reply:
        """Returns the answer to a request about `shards`, which is given up if another server takes over meanwhile."""
        if not self.copies:
            return await request
        way = Way(lane.node, lane.connection)

        def moved() -> bool:
            return any(self.routing.way_of(shard) != way for shard in shards)

        try:
            return await self.rerouting.answer(request, moved)
        except UnreachableError as error:
            lane.trouble = str(error)
            raise

    async def pause(self, attempt: int) -> None:
        """Waits before retry number `attempt` (from 0)."""
        await pause(attempt, copies=self.copies)

    @property
    def copies(self) -> bool:
        """Whether buckets have copies, so that another server takes over from one that is gone."""
        return self.routing.record.replication > 1

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.routing.servers)

    def servers_of_tensors(self) -> tuple[int, ...]:
        """Returns, per tensor, how many connections its parts travel on, each with all activations of factors."""
        return servers_of_tensors(self.layout, dict(enumerate(self.routing.ways)))

    # --- push --------------------------------------------------------------------------------------------------------

    def start_push(self, push: PushSet, *, exact: bool = False, only: Collection[int] | None = None) -> PendingPush:
        """Gives the push its numbers and starts to send it; the order of calls is the order on every shard.

        `exact` sends it as float32 whatever `wire_push` says; `only` some shards of it.

        Raises:
            BackpressureError: `pushes_max` pushes are unacknowledged.
            MemoryError: no room to round it; it has no number.
        """
        if len(self._deliveries) >= self._pushes_max:
            raise BackpressureError(f"{self._pushes_max} pushes are unacknowledged: {self._troubles()}; wait for some")
        rounding = None if exact else self.wire.start(push)  # may raise; a number that is given out must be sent
        self._pushes += 1
        sequences = np.zeros_like(self.issued)
        touched = self.routing.shards_of(push.updates) if only is None else np.array(sorted(only), np.int64)
        self.issued[touched] += 1
        sequences[touched] = self.issued[touched]
        done: asyncio.Future[PushOutcome] = asyncio.get_running_loop().create_future()
        done.add_done_callback(mark_retrieved)
        pending = PendingPush(self._pushes, push, sequences, done)
        delivery = Delivery(self, self._pushes, push, sequences, rounding, only is None)
        task = asyncio.create_task(self._deliver(delivery, pending, done))
        self._deliveries[task] = delivery
        task.add_done_callback(self._deliveries.pop)
        return pending

    async def push(self, push: PushSet, *, deadline_s: float = 60.0, exact: bool = False) -> PushOutcome:
        """Sends a push and returns when every shard has answered.

        Raises:
            DeadlineError: too late; it may still be applied.
            RemoteError: the job is unknown or has ended, or the layout does not match.
            BackpressureError: too many pushes are unacknowledged.
        """
        return await self.start_push(push, exact=exact).wait(deadline_s)

    async def _deliver(self, delivery: Delivery, pending: PendingPush, done: asyncio.Future[PushOutcome]) -> None:
        try:
            await delivery.run()
        except AdamctlError as error:
            done.set_exception(error)
        except asyncio.CancelledError:
            done.set_exception(UnreachableError(f"push {pending.number} was given up: the client was closed"))
            raise
        except Exception as error:
            log.exception("push %d", pending.number)
            done.set_exception(error)
        else:
            told = tuple(delivery.staleness), tuple(delivery.refused), delivery.updates, tuple(delivery.ages)
            done.set_result(PushOutcome(*told))

    # --- pull --------------------------------------------------------------------------------------------------------

    async def pull(
        self, into: Array, *, shards: Sequence[int] | None = None, deadline_s: float = 60.0, exact: bool = False
    ) -> Pulled:
        """Receives parameters straight into a flat vector laid out like the job's `ParameterLayout`.

        Each shard is at one version; different shards may be at different ones. On an error some may be overwritten.

        Args:
            into: float32 [layout.flat_size], C-contiguous; padding between tensors is left as it is.
            shards: which ones, ascending; default all.
            exact: receive float32 whatever `wire_pull` says.

        Raises:
            DeadlineError: not all answered in time.
            RemoteError: the job is unknown or has ended.
        """
        return await Puller(self, into, shards, exact).run(deadline_s)

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def checkpoint(self, folder: str, *, deadline_s: float = 600.0) -> tuple[CheckpointFile, ...]:
        """Has every server write its shards into `folder` under temporary names; returns all files, sorted by name.

        Raises:
            DeadlineError, UnreachableError, RemoteError: a server did not; its message names it.
        """

        return await order_checkpoint(self, folder, deadline_s)

    async def close(self) -> None:
        """Gives up what is unacknowledged and closes the connections."""
        for task in tuple(self._deliveries):
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)
        await self.rerouting.close()
        self.wire.close()
        for lane in self._lanes.values():
            await lane.drop()


def _named(hello: Callable[[], Hello], part: str) -> Callable[[], Hello]:
    """Returns an identity that servers take for another client's."""
    return lambda: msgspec.structs.replace(own := hello(), node=derived_name(own.node, part))


_WAIT_CODES = (ErrorCode.NOT_READY, ErrorCode.UNKNOWN_JOB, ErrorCode.NEWER_EPOCH, ErrorCode.SHUTTING_DOWN)

"""How workers, coordinators and tools use a job's parameters: attach, push, pull, checkpoint.

One client per (node, incarnation) and job; all calls on one event loop. A client has one or more connections to each
server; each shard stays on one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from adamctl.config.names import derived_name
from adamctl.errors import AdamctlError, BackpressureError, UnreachableError
from adamctl.kernels.operation import Array
from adamctl.model.layout import ParameterLayout
from adamctl.model.protocol import servers_of_tensors
from adamctl.model.wire_types import WireType
from adamctl.net.transport import Transport
from adamctl.roles.ps.checkpoint_files import load_parameters, read_checkpoint
from adamctl.roles.ps.client.bundle_push import BundleOutcome, BundlePush
from adamctl.roles.ps.client.checkpoint import order_checkpoint
from adamctl.roles.ps.client.cost_estimate import Measurements
from adamctl.roles.ps.client.delivery import Delivery
from adamctl.roles.ps.client.outcomes import PendingPush, Pulled, PushOutcome, RefusedPart, mark_retrieved
from adamctl.roles.ps.client.pull import Puller
from adamctl.roles.ps.client.push_set import Base, Numbers, PushSet
from adamctl.roles.ps.client.rollback import Rollbacks
from adamctl.roles.ps.client.routing import JobRouting, ReadableStore
from adamctl.roles.ps.client.server_channel import ServerChannel
from adamctl.roles.ps.client.session import Session, ShardsChosen
from adamctl.roles.ps.client.shared_memory import SharedArrays
from adamctl.roles.ps.client.vector_client import VectorAnswer, VectorClient, numbers_of
from adamctl.roles.ps.client.wire_choice import WireChoice
from adamctl.roles.ps.core.push import Place
from adamctl.wire.messages import CheckpointFile, Hello

if TYPE_CHECKING:
    from adamctl.roles.context import RoleContext

__all__ = [
    "Base",
    "BundleOutcome",
    "ParameterClient",
    "PendingPush",
    "Place",
    "Pulled",
    "PushOutcome",
    "PushSet",
    "RefusedPart",
    "VectorAnswer",
    "VectorClient",
    "load_parameters",
    "numbers_of",
    "read_checkpoint",
]

log = logging.getLogger(__name__)


class ParameterClient:
    """A job's parameters, on one or more servers."""

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
        choose: ShardsChosen | None = None,
    ) -> None:
        """Args:
        hello: the identity to connect with; servers remember this client by node and incarnation.
        store: the configuration service.
        notice: called with a text that says what the client waits for; default: the log.
        attempt_s: an unanswered request is sent again after this many seconds.
        pushes_max: pushes that may be unacknowledged at once.
        wire_push: number type of pushes on the wire; 16-bit types halve the bytes and are rounded with error feedback.
        wire_pull: number type of pulls on the wire; the servers themselves keep float32.
        connections: how many to each server; use more than one if one cannot fill the network.
        in_step: pushes will be parts of steps.
        choose: which shards it uses: it attaches to their servers alone, and pulls no others.
        """
        self._session = Session(
            transport,
            hello,
            store,
            job,
            notice=notice or log.warning,
            attempt_s=attempt_s,
            wire=WireChoice(wire_push, wire_pull),
            connections=connections,
            in_step=in_step,
            choose=choose,
        )
        self._choose = choose
        self._pushes_max = pushes_max
        self._pushes = 0

    @classmethod
    def from_context(cls, context: RoleContext, job: str, *, session: int = 0, **options: Any) -> ParameterClient:
        """Returns a client for a role: its transport, identity, controller and log.

        `session`: how many clients this process had before. Pushes that those abandoned may still reach servers and
        must not use up this client's numbers, so servers know each client by its own name.
        """
        assert context.controller is not None
        notice = options.pop("notice", context.log.warning)
        hello = _named(context.hello, f"session-{session}") if session else context.hello
        return cls(context.transport, hello, context.controller, job, notice=notice, **options)

    def sibling(self, number: int) -> ParameterClient:
        """Returns another client of the same job, not yet attached, with its own numbers and connections.

        If one process sends two parts of a step, each may have to wait for the other on the server.
        """
        session = self._session
        return ParameterClient(
            session.transport,
            _named(session.hello, f"part-{number}"),
            session.store,
            session.job,
            notice=session.notice,
            attempt_s=session.attempt_s,
            wire_push=session.wire.push,
            wire_pull=session.wire.pull,
            in_step=session.in_step,
            choose=self._choose,
        )

    # --- attach ------------------------------------------------------------------------------------------------------

    async def attach(self, *, deadline_s: float = 60.0) -> None:
        """Reads the job's layout and buckets and attaches to every server that holds a part; waits until all serve.

        The deadline does not run while a server says that it is making its part: of large models, or from a checkpoint
        on a slow disk, that takes minutes.

        Raises:
            DeadlineError: not all servers served within `deadline_s`; the message says which did not, and why.
            RemoteError: LAYOUT_MISMATCH, OVER_QUOTA, RUN_ENDED, DAMAGED_DATA; UNKNOWN_JOB at the end of the deadline.
        """
        await self._session.attach(deadline_s=deadline_s)

    # --- what it knows -----------------------------------------------------------------------------------------------

    @property
    def job(self) -> str:
        return self._session.job

    @property
    def layout(self) -> ParameterLayout:
        """The job's layout; known after `attach`."""
        return self._session.layout

    @property
    def routing(self) -> JobRouting:
        """Which server holds what, as last read."""
        return self._session.routing

    @property
    def issued(self) -> Numbers:
        """Per shard, the last sequence number given out."""
        return self._session.issued

    @property
    def wire(self) -> WireChoice:
        return self._session.wire

    @property
    def shared(self) -> SharedArrays:
        """Memory from which servers on this machine read pushes directly and into which they write pulls."""
        return self._session.shared

    @shared.setter
    def shared(self, arrays: SharedArrays) -> None:
        self._session.shared = arrays

    @property
    def measured(self) -> Measurements:
        """How busy the servers are and how fast the network is."""
        return self._session.measured

    @property
    def rollbacks(self) -> Rollbacks:
        """Pushes that were acknowledged to this client and then lost."""
        return self._session.rollbacks

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.routing.servers)

    def servers_of_tensors(self) -> tuple[int, ...]:
        """Returns, per tensor, how many connections carry its parts; each carries all activations of factors."""
        return servers_of_tensors(self.layout, dict(enumerate(self.routing.routes)))

    def channel(self, server: str, connection: int = 0) -> ServerChannel:
        return self._session.channel(server, connection)

    def transports(self) -> dict[str, str]:
        """Returns the kind of connection to each server: `shared`, `unix`, `tcp`, or an empty text if not connected."""
        return self._session.transports()

    # --- push --------------------------------------------------------------------------------------------------------

    def start_push(self, push: PushSet, *, exact: bool = False, only: Collection[int] | None = None) -> PendingPush:
        """Numbers the push and starts to send it; every shard applies pushes in the order of these calls.

        `exact`: send float32 regardless of `wire_push`. `only`: send just these shards.

        Raises:
            BackpressureError: `pushes_max` pushes are unacknowledged.
            MemoryError: no memory to round it; no number was used.
        """
        session = self._session
        if len(session.pushes) >= self._pushes_max:
            what = f"{self._pushes_max} pushes are unacknowledged"
            raise BackpressureError(f"{what}: {session.troubles()}; wait for some")
        rounding = None if exact else session.wire.start(push, only)  # may raise; once numbered, a push must be sent
        self._pushes += 1
        issued = session.issued
        sequences = np.zeros_like(issued)
        touched = session.routing.shards_of(push.updates) if only is None else np.array(sorted(only), np.int64)
        issued[touched] += 1
        sequences[touched] = issued[touched]
        done: asyncio.Future[PushOutcome] = asyncio.get_running_loop().create_future()
        done.add_done_callback(mark_retrieved)
        pending = PendingPush(self._pushes, push, sequences, done)
        delivery = Delivery(session, self._pushes, push, sequences, rounding, only is None)
        task = asyncio.create_task(self._deliver(delivery, pending, done))
        session.pushes[task] = delivery
        task.add_done_callback(session.pushes.pop)
        task.add_done_callback(lambda _: _abandoned(pending.number, done))  # a task may be cancelled before it begins
        return pending

    async def push(self, push: PushSet, *, deadline_s: float = 60.0, exact: bool = False) -> PushOutcome:
        """Sends a push and returns when every shard has answered.

        Raises:
            DeadlineError: not answered in time; it may still be applied.
            RemoteError: the job is unknown or has ended, or the layout does not match.
            BackpressureError: too many pushes are unacknowledged.
        """
        return await self.start_push(push, exact=exact).wait(deadline_s)

    async def idle(self) -> None:
        """Returns when no push is on its way."""
        while self._session.pushes:
            await asyncio.wait(set(self._session.pushes))

    async def _deliver(self, delivery: Delivery, pending: PendingPush, done: asyncio.Future[PushOutcome]) -> None:
        try:
            await delivery.run()
        except AdamctlError as error:
            done.set_exception(error)
        except Exception as error:
            log.exception("push %d", pending.number)
            done.set_exception(error)
        else:
            told = tuple(delivery.staleness), tuple(delivery.refused), delivery.updates, tuple(delivery.ages)
            done.set_result(PushOutcome(*told))

    # --- pull --------------------------------------------------------------------------------------------------------

    async def pull(
        self,
        into: Array,
        *,
        shards: Sequence[int] | None = None,
        deadline_s: float = 60.0,
        exact: bool = False,
        vector: str = "",
        evaluation: int = 0,
    ) -> Pulled:
        """Receives parameters directly into a flat vector laid out like the job's `ParameterLayout`.

        Each shard is at one version; versions may differ between shards. After an error some shards may have been
        overwritten.

        Args:
            into: float32 [layout.flat_size], C-contiguous; padding between tensors is left as it is.
            shards: which shards, ascending; default all that it uses.
            exact: receive float32 regardless of `wire_pull`.
            vector, evaluation: of a batch algorithm, the vector at which an evaluation was opened.

        Raises:
            DeadlineError: not all answered in time.
            RemoteError: the job is unknown or has ended; NO_VECTOR or STALE_EVALUATION, and `details["buckets"]` says
                which buckets have not, or no longer, opened this evaluation at this vector.
        """
        wanted = self._session.chosen if shards is None else shards
        return await Puller(self._session, into, wanted, exact, vector, evaluation).run(deadline_s)

    # --- batch algorithms --------------------------------------------------------------------------------------------

    @property
    def vectors(self) -> VectorClient:
        """What the coordinator of a batch algorithm has servers do with its vectors."""
        return VectorClient(self._session)

    async def add_bundle(
        self,
        evaluation: int,
        bundle: int,
        weight: float,
        gradient: Array,
        *,
        shards: Sequence[int] | None = None,
        deadline_s: float = 60.0,
    ) -> BundleOutcome:
        """Adds weight x gradient to the sum of an evaluation, at most once on each shard; see `BundlePush`."""
        return await BundlePush(self._session, evaluation, bundle, weight, gradient, shards).run(deadline_s)

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def checkpoint(
        self, folder: str, *, deadline_s: float = 600.0, commit: int = -1, nonce: str = ""
    ) -> tuple[CheckpointFile, ...]:
        """Makes every server write its shards to `folder` under temporary names; returns all files, sorted by name.

        `commit`: of a batch algorithm, which all shards must be at; -1: any. `nonce`: what `folder` has in `.nonce`;
        what servers cannot write there, as they do not have that folder, is fetched and written from here.

        Raises:
            DeadlineError, UnreachableError, RemoteError: a server failed to; the message names it.
            DamagedDataError, OSError: what was fetched is damaged, or could not be written.
        """
        return await order_checkpoint(self._session, folder, deadline_s, commit, nonce)

    async def close(self) -> None:
        """Abandons unacknowledged pushes and closes the connections."""
        pushes = self._session.pushes
        for task in tuple(pushes):
            task.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)
        await self._session.close()


def _abandoned(number: int, done: asyncio.Future[PushOutcome]) -> None:
    """Ends the wait for a push whose delivery was cancelled."""
    if not done.done():
        done.set_exception(UnreachableError(f"push {number} was abandoned: the client was closed"))


def _named(hello: Callable[[], Hello], part: str) -> Callable[[], Hello]:
    """Returns an identity that servers treat as another client."""
    return lambda: msgspec.structs.replace(own := hello(), node=derived_name(own.node, part))

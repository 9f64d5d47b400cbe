"""The parameter server's shell: feeds requests, configuration and finished batches to the core and acts for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from adamctl.errors import RunFailedError
from adamctl.kernels.backend import load_if_compiled
from adamctl.kernels.needed import COMMON_RULE_KERNELS
from adamctl.kernels.rules.make import load_rule
from adamctl.net.transport import Request, Server
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.apply.applier import ApplyInline, ApplyThreads
from adamctl.roles.ps.apply.direct_reply import DirectPulls
from adamctl.roles.ps.apply.load_meter import LoadMeter
from adamctl.roles.ps.apply.narrow_reply import PullConverter
from adamctl.roles.ps.apply.streaming import Arrival, ArrivalApplier
from adamctl.roles.ps.background import Background
from adamctl.roles.ps.checkpoint_writer import Saver
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import (
    AnswerAccumulate,
    AnswerAttach,
    AnswerPull,
    AnswerPush,
    AnswerVectors,
    Apply,
    Ask,
    Build,
    Compute,
    Free,
    GiveImage,
    Holds,
    Instruction,
    Keep,
    LetGo,
    Load,
    Notice,
    Propose,
    ReadNode,
    Recover,
    Refresh,
    Refuse,
    Reply,
)
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.jobs.copy_builder import Copies
from adamctl.roles.ps.jobs.keeper import JobKeeper
from adamctl.roles.ps.leaving import move_off
from adamctl.roles.ps.options import ServerOptions, server_options
from adamctl.roles.ps.replication.shell import ReplicationShell
from adamctl.roles.ps.retired_clients import follow_retired, keep_retired
from adamctl.roles.ps.statistics import Rates
from adamctl.roles.ps.status import counters_of, jobs_status
from adamctl.roles.ps.store.flusher import StoreWriter
from adamctl.roles.ps.store.lmdb_log import LogStore
from adamctl.roles.ps.vector_service import VectorService
from adamctl.roles.rooted import Roots
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    AccumulateRequest,
    AttachRequest,
    CheckpointPartRequest,
    CheckpointRequest,
    CommitRequest,
    EvaluateRequest,
    PullRequest,
    PushRequest,
    ReplicaFetchRequest,
    ReplicaPrepareRequest,
    ReplicaStateRequest,
    RoundRequest,
)


async def run(context: RoleContext) -> None:
    """Serves jobs until `context.stopping` is set.

    Raises:
        ConfigurationError: a flag is wrong, or the store's folder cannot be used.
        DamagedDataError: the store is damaged; nothing in it is served.
    """
    options = server_options(context.options)
    store = await asyncio.to_thread(LogStore, options.store) if options.store is not None else None
    try:
        await ParameterServer(context, options, store).run()
    finally:
        if store is not None:
            store.close()


class ParameterServer:
    """One parameter server in this process."""

    def __init__(self, context: RoleContext, options: ServerOptions, store: LogStore | None) -> None:
        loop = asyncio.get_running_loop()
        threads = options.apply_threads
        self._storing = StoreWriter(store, options.flush, context.log, context.fail) if store is not None else None
        self.core = ServerCore(max(threads, 1), flush=self._storing.flush if self._storing is not None else None)
        self._context, self._log, self._now = context, context.log, loop.time
        self._options = options
        self._threads = ApplyThreads(threads, self._completed) if threads else ApplyInline(self._completed)
        self._arrivals = ArrivalApplier(self.core, self._completed)
        self._converter = PullConverter(threads)
        self._direct = DirectPulls(threads)
        self._server: Server | None = None
        self._background = Background(context.log)
        self._spawn = self._background.spawn
        self._rates = Rates(loop.time())
        self._meter = LoadMeter(loop.time())
        roots = Roots(options.checkpoint_roots, "--checkpoint-root")
        self._keeper = JobKeeper(
            context, self.core, self._storing, options.memory_bytes_max, self._carry_out, self._spawn
        )
        self._keeper.roots = roots
        self._saver = Saver(self.core, context.node, context.log, roots, self._keeper.coordinator)
        self._vectors = VectorService(self.core, self._keeper.coordinator)
        self._keeper.prepare = lambda rule: asyncio.to_thread(load_rule, rule)
        self._carriers: dict[type[Any], Callable[[Any], None]] = {
            Apply: self._threads.submit,
            Compute: self._threads.submit,
            AnswerVectors: self._vectors.answer,
            AnswerAccumulate: self._vectors.answer_accumulate,
            Keep: lambda keep: keep.token.lease.retain(),
            Free: lambda free: free.token.lease.release(),
            AnswerPush: self._answer_push,
            AnswerPull: self._answer_pull,
            AnswerAttach: self._answer_attach,
            Refuse: self._refuse,
            GiveImage: lambda give: give.take(give.image),
            Recover: self._recover,
            Refresh: lambda refresh: self._keeper.refresh(refresh.job),
        }

    async def run(self) -> None:
        self._context.status, self._context.unready = self.status, self.unready
        self._context.stays = lambda: bool(self.core.jobs)
        following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Kernels (these and those of a job's rule) load in threads, because loading would block the event loop.
        kernels = asyncio.create_task(asyncio.to_thread(load_if_compiled, COMMON_RULE_KERNELS))
        try:
            if self._storing is not None:
                self._storing.start(self.core, self._carry_out)
            await self._serve()
            self._replicate()
            await kernels
            following = asyncio.create_task(self._keeper.follow())
            self._spawn(self._keeper.forget_unknown(self._options.forget_after_s))
            stopping = asyncio.create_task(self._context.stopping.wait())
            done, _ = await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if following in done:
                following.result()
            await move_off(self._context, self._keeper)
        finally:
            for task in (tasks := (following, *self._background.tasks)):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._saver.streams.close()
            if self._keeper.replicating is not None:
                await self._keeper.replicating.close()
            if self._storing is not None:
                await self._storing.close()
            self._threads.stop()
            self._converter.close()
            self._direct.stop()

    async def _serve(self) -> None:
        """Listens at one address, or at one each for clients, administration and replication (Adam 3.3.4)."""
        options = self._options
        common = self._context.common
        self._context.stores = self._storing is not None
        self._context.failure_domain, self._context.drain_on_term_s = options.failure_domain, options.drain_on_term_s
        self._context.kept_in = self._options.store
        if not common.capacity_bytes:  # so that no copies are placed here that do not fit
            self._context.common = replace(common, capacity_bytes=options.memory_bytes_max)
        sockets = tuple(text for text in self._context.listen if not text.startswith("tcp://"))
        self._server = await self._context.serve(
            self.handle,
            addresses=(options.listen, *sockets) if options.listen else (),
            administration=(options.admin_listen,) if options.admin_listen else (),
            replication=(options.replication_listen,) if options.replication_listen else (),
            on_disconnect=self._disconnected,
            arriving=self.arriving if options.applies_arriving else None,
            region_bytes_max=options.region_bytes_max,
        )

    def _replicate(self) -> None:
        """Starts replication; called once this server is a member of the cluster."""
        replicating = ReplicationShell(self._context, self.core, self._keeper.memory, self._carry_out, self._spawn)
        copies = Copies(
            self._context, self.core, self._storing, self._keeper, replicating, self._carry_out, self._spawn
        )
        self._keeper.replicating = replicating
        replicating.spared = copies.kept
        assert self._context.controller is not None
        self._spawn(follow_retired(self._context.controller, self.core, self._log))
        if self._context.failure_detector is not None:  # etcd, which does not retire incarnations by itself
            self._spawn(keep_retired(self._context.controller, self._context.node, self._log))
        self._carriers |= {
            Ask: replicating.ask,
            Reply: replicating.reply,
            Propose: replicating.propose,
            ReadNode: replicating.read_node,
            Notice: replicating.notice,
            Build: copies.build,
            Load: copies.load,
            Holds: copies.holds,
            LetGo: copies.let_go,
        }

    # --- requests and instructions -----------------------------------------------------------------------------------

    def handle(self, request: Request) -> None:
        """Passes one request to the core; called on the event loop."""
        message = request.message
        client: ClientKey = (request.peer.node, request.peer.incarnation)
        connection = request.connection_id
        if isinstance(message, PushRequest):
            body = request.region(message.region) if message.region else request.body
            arriving = request.arrival.push if isinstance(request.arrival, Arrival) else None
            out = self.core.push(request, connection, client, message, body, self._now(), arriving)
        elif isinstance(message, PullRequest):
            out = self.core.pull(request, connection, client, message, self._now())
        elif isinstance(message, _VECTOR_REQUESTS):
            out = self._vectors.requested(request, message, self._now())
        elif isinstance(message, AttachRequest):
            out = self._attached(request, connection, client, message)
        elif isinstance(message, CheckpointRequest):
            self._saver.streams.expect(connection)
            self._spawn(self._saver.save(request, message))
            return
        elif isinstance(message, CheckpointPartRequest):
            self._spawn(self._saver.streams.part(request, message))
            return
        elif isinstance(message, _REPLICA_REQUESTS) and self._keeper.replicating is not None:
            self._keeper.replicating.requested(request)
            return
        else:
            request.fail(ErrorCode.UNKNOWN_OPCODE, f"a parameter server does not serve {type(message).__name__}")
            return
        self._carry_out(out)

    def _disconnected(self, connection: int) -> None:
        self.core.disconnected(connection)
        self._saver.streams.disconnected(connection)

    def arriving(self, request: Request) -> Arrival | None:
        """Called when a push starts to arrive: its parts may be applied while the rest is still arriving."""
        if not isinstance(request.message, PushRequest):
            return None
        client: ClientKey = (request.peer.node, request.peer.incarnation)
        return self._arrivals.begin(request.connection_id, client, request.message, request.body, self._now())

    def _attached(
        self, request: Request, connection: int, client: ClientKey, message: AttachRequest
    ) -> list[Instruction]:
        if len(request.body) % (2 * np.dtype("<i8").itemsize):
            return [Refuse(request, ErrorCode.BAD_MESSAGE, "expected pairs of a shard and a sequence number")]
        settled = np.frombuffer(request.body, "<i8")
        job = self.core.jobs.get(message.job)
        before = sum(job.rolled_back.values()) if job is not None else 0
        pairs = zip(settled[::2].tolist(), settled[1::2].tolist(), strict=True)
        out = self.core.attach(request, connection, client, message, self._now(), pairs)
        lost = sum(job.rolled_back.values()) - before if job is not None else 0
        if lost:
            self._log.warning(
                "job %s: the restart rolled back %d acknowledged shard pushes of client %s, incarnation %d",
                message.job, lost, *client,
            )  # fmt: skip
        return out

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            try:
                self._carriers[type(instruction)](instruction)
            except ValueError as error:  # an answer too large for a frame must not stop the other instructions
                if not isinstance(instruction, _ANSWERS) or instruction.token.answered:
                    raise
                instruction.token.fail(ErrorCode.WRONG_LENGTH, f"{error}; ask for less per request")

    def _completed(self, done: Apply | Compute) -> None:
        now = self._now()
        if self._meter.due(now):
            busy_s = sum(self._threads.busy_s) + self._arrivals.busy_s
            self._meter.sample(now, busy_s, (*self._threads.works, self._arrivals.work), self.core.threads)
        if isinstance(done, Compute):
            self._carry_out(self._vectors.core.completed(done.job, done.batches, now))
        else:
            self._carry_out(self.core.completed(done.job, done.batches, now))
        if done.job.failed is not None and any(batch.damaged for batch in done.batches):
            self._log.error("%s", done.job.failed[1])
        if self._storing is not None:
            self._storing.kick()

    def _recover(self, instruction: Recover) -> None:
        assert self._storing is not None
        self._storing.give_up()
        self._context.fail(RunFailedError(instruction.why))

    def _answer_push(self, instruction: AnswerPush) -> None:
        request = instruction.token
        try:
            request.reply(msgspec.structs.replace(instruction.message, load=self._meter.load))
        finally:
            if instruction.queued:
                request.lease.release()

    def _answer_pull(self, instruction: AnswerPull) -> None:
        if instruction.token.message.region:
            self._direct.answer(instruction)
            return
        if instruction.dtype != "float32":
            self._converter.answer(instruction)
            return
        held = instruction.values

        def sent() -> None:
            for values in held:
                values.release()

        try:
            instruction.token.reply(instruction.message, [values.array for values in held], sent)
        except ValueError:
            sent()
            raise

    def _answer_attach(self, instruction: AnswerAttach) -> None:
        body = [np.asarray(instruction.known, "<i8")] if instruction.known else []
        instruction.token.reply(instruction.message, body)

    def _refuse(self, instruction: Refuse) -> None:
        instruction.token.fail(instruction.code, instruction.message, instruction.details)

    # --- status ------------------------------------------------------------------------------------------------------

    def unready(self) -> str:
        """Returns why clients cannot count on this server now: buckets that it is to serve are on their way."""
        jobs = [job for job in self.core.jobs.values() if job.failed is None]
        left = sum(len(job.building) + len(job.taking) for job in jobs)
        return "buckets are on their way" if left else ""

    def status(self) -> dict[str, Any]:
        """Plain values for `adamctl status`; rates cover the last few seconds."""
        jobs = list(self.core.jobs.values())
        counters = counters_of(jobs)
        counters |= {f"busy {number}": busy for number, busy in enumerate(self._threads.busy_s)}
        counters["busy 0"] += self._arrivals.busy_s
        rates = self._rates.sample(self._now(), counters)
        views = {job.name: self._keeper.view(job.name) for job in jobs}
        acks = {name: view.record.acks for name, view in views.items() if view is not None}
        return {
            **jobs_status(jobs, rates, acks),
            "bytes_max": self._options.memory_bytes_max,
            "background_failures": self._background.failures,
            "queued_updates": self.core.queued_updates,
            "queued_bytes": self.core.queued_bytes,
            "connections": self._server.connections_by_kind() if self._server is not None else {},
            "region_bytes": self._server.region_bytes if self._server is not None else 0,
            "store": self._storing.status() if self._storing is not None else {},
            "replication": self._keeper.replicating.status() if self._keeper.replicating is not None else {},
            "checkpoint_streams": len(self._saver.streams),
            "apply_busy": [min(rates[f"busy {number}"], 1.0) for number in range(self.core.threads)],
            "held_bytes": self._keeper.memory.held_bytes,
        }


_ANSWERS = (AnswerAccumulate, AnswerAttach, AnswerPull, AnswerPush, AnswerVectors)
_VECTOR_REQUESTS = (AccumulateRequest, CommitRequest, EvaluateRequest, RoundRequest)
_REPLICA_REQUESTS = (ReplicaPrepareRequest, ReplicaStateRequest, ReplicaFetchRequest)

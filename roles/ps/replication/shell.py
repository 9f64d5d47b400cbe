"""Carries out the replication core's instructions: requests to and answers for other servers, records, timers.

Shard states arrive in pooled buffers and are copied into memory of their own, which then replaces the old copy as a
whole, so that a copy never mixes two versions. Long work is done in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any

from adamctl.errors import AdamctlError, DamagedDataError, RemoteError, UnreachableError
from adamctl.net.transport import Request
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.core.instructions import Ask, Instruction, Notice, Propose, ReadNode, Reply
from adamctl.roles.ps.core.job import ShardContent
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Image
from adamctl.roles.ps.core.shard_message import CopyRecord, encode_body, own_records
from adamctl.roles.ps.initial_values import bytes_needed
from adamctl.roles.ps.memory_budget import MemoryAccount, RecycledMemory
from adamctl.roles.ps.replication.checksums import Checksums
from adamctl.roles.ps.replication.connections import PeerLinks
from adamctl.roles.ps.replication.core.outbox import ReplicationConfig
from adamctl.roles.ps.replication.core.recovery import Kept
from adamctl.roles.ps.replication.core.replication_core import ReplicationCore
from adamctl.roles.ps.replication.membership import Neighbours
from adamctl.roles.ps.statistics import Rates
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ReplicaPrepareReply, ReplicaPrepareRequest

INLINE_BYTES_MAX = 128 << 10
"""Bodies up to this size are checked and copied on the event loop: it takes less time than waking a thread."""
THREADS = 2
SOON_S = 0.001
UNEXPECTED = "the server failed unexpectedly; see its log"
STALL_SHARE = 0.25
"""Share of the heartbeat interval; if a timer is later than this, the event loop was stalled."""


class ReplicationShell:
    """Replication on one server. Everything except checksums and copying runs on the event loop.

    Attributes:
        core: makes the decisions.
        asked_records, asked_bytes: shard states sent to other servers.
        kept_records: shard states received from others.
        spared: job -> what the store has of buckets that this server should not hold.
    """

    def __init__(
        self,
        context: RoleContext,
        core: ServerCore,
        memory: MemoryAccount,
        carry_out: Callable[[list[Instruction]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Create it only after registration.

        Args:
            carry_out: carries out the core's instructions.
            spawn: runs work in the background.
        """
        assert context.controller is not None
        self._context, self._log, self._store = context, context.log, context.controller
        self._jobs, self._memory = core.jobs, memory
        self._carry_out, self._spawn = carry_out, spawn
        lease_s = context.lease.lease_s
        config = ReplicationConfig.of_lease(lease_s) if lease_s < inf else ReplicationConfig()
        self._loop = asyncio.get_running_loop()
        self.core = ReplicationCore(
            core, context.node, config, lambda: context.lease.valid(), self._now, time.time, self._loop.time,
            lambda: context.lease.confirmed_s,
        )  # fmt: skip
        self.asked_records = self.asked_bytes = self.kept_records = 0
        self.spared: Callable[[str], Mapping[int, Kept]] = lambda _: {}
        self._links = PeerLinks(context)
        self._threads: ThreadPoolExecutor | None = None
        self._recycled = RecycledMemory()
        self._own = partial(own_records, new=self._recycled.new)
        self._encode = partial(encode_body, checksum_of=Checksums().of)
        self._neighbours = Neighbours(context, spawn, self._configure_all)
        self._neighbours.begin()
        self._views: dict[str, JobView] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = inf
        self._timer_s = 0.0
        self._rates = Rates(self._loop.time())

    def _now(self) -> float:
        return self._context.lease.clock()

    def _event_s(self) -> float:
        """Returns the current time, before an event. If the loop was stalled, tells the core first.

        Messages that arrived meanwhile are still unread, so their senders must not count as silent.
        """
        now = self._now()
        if now > self._due_s + self.core.config.heartbeat_s * STALL_SHARE:
            self._due_s = inf
            self.core.stalled(now)
        return now

    async def close(self) -> None:
        """Closes the links; background tasks must have ended before."""
        if self._timer is not None:
            self._timer.cancel()
        await self._links.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    # --- configuration ----------------------------------------------------------------------------------------------

    def registered(self, revision: int) -> None:
        """Notes the revision of this server's node key."""
        self.core.registered(self._context.incarnation, revision)

    def configure(self, name: str, view: JobView) -> None:
        """Takes in a job's records."""
        self._views[name] = view
        self._configure(name)

    def over(self, name: str) -> None:
        """Notes that a job has ended; call it before `ServerCore.remove_job`."""
        if self._views.pop(name, None) is not None:
            self._tell(name, None)
            self._recycled.forget()

    def _configure(self, name: str) -> None:
        if self._neighbours.told and name in self._views:
            self._tell(name, self._views[name])

    def _configure_all(self) -> None:
        self._links.take(self._neighbours.records)
        for name in sorted(self._views):
            self._configure(name)

    def _tell(self, name: str, view: JobView | None) -> None:
        known = self._neighbours
        self._do(self.core.configured(name, view, known.nodes, known.draining, self._event_s()))

    def built(self, name: str, contents: Mapping[int, Sequence[ShardContent]]) -> list[Instruction]:
        """Passes built buckets to the core."""
        return self.core.built(name, contents, self._event_s())

    def loaded(self, name: str, contents: Mapping[int, Sequence[ShardContent] | None]) -> list[Instruction]:
        """Passes buckets loaded from the store to the core."""
        return self.core.loaded(name, contents, self._event_s())

    def read_node(self, instruction: ReadNode) -> None:
        """Reads the key of a server that has been silent for long."""
        self._neighbours.read(instruction.node, self._configure_all)

    def others(self) -> frozenset[str]:
        """Returns the live servers that may be given copies."""
        return frozenset(self._neighbours.nodes) - self._neighbours.draining - {self._context.node}

    # --- events -----------------------------------------------------------------------------------------------------

    def _do(self, instructions: list[Instruction]) -> None:
        self._carry_out(instructions)
        self._arm()

    def _arm(self) -> None:
        """Sets the timer to the core's next deadline if that is earlier than the current timer."""
        now = self._now()
        due_s = max(self.core.next_deadline_s(now), now)
        when = self._loop.time() + due_s - now
        if self._timer is not None:
            if self._timer_s <= when + SOON_S:
                return
            self._timer.cancel()
        self._timer_s = when  # uvloop's handle does not know its time once that has passed
        self._timer, self._due_s = self._loop.call_at(when, self._tick), due_s

    def _tick(self) -> None:
        due_s, now = self._due_s, self._event_s()
        self._timer, self._due_s = None, inf
        if due_s - now < SOON_S:  # rounded, the loop's time may come just before ours
            now = max(now, due_s)
        if self._views:
            self._do(self.core.tick(now))

    # --- requests of other servers ----------------------------------------------------------------------------------

    def requested(self, request: Request) -> None:
        """Handles a request of another server; called on the event loop."""
        message = request.message
        if isinstance(message, ReplicaPrepareRequest) and message.begins and not self._has_room(message):
            refused = dict.fromkeys(message.epochs, int(ErrorCode.UNKNOWN_SHARD))  # it will hold no copy
            request.reply(ReplicaPrepareReply(self._context.incarnation, refused))
            return
        if len(request.body) <= INLINE_BYTES_MAX:
            try:
                self._take_in(request, self._own(request.body))
            except DamagedDataError as error:
                request.fail(ErrorCode.DAMAGED_DATA, str(error))
            return
        request.lease.retain()
        self._spawn(self._receive(request, request.body))

    def _has_room(self, message: ReplicaPrepareRequest) -> bool:
        """Returns whether copies that a primary wants to start here fit into memory."""
        job = self._jobs.get(message.job)
        if job is None:
            return True
        count = len(job.layout.buckets)
        new = [index for index in message.begins if (job.name, index) not in self._memory.copies and 0 <= index < count]
        problem = self._memory.problem(job.name, bytes_needed(job.layout, new, job.rule))
        if problem is not None:
            self._log.warning("refusing copies of buckets %s: %s", new, problem)
        return problem is None

    async def _receive(self, request: Request, body: memoryview) -> None:
        try:
            records = await self._in_thread(self._own, body)
            self._take_in(request, records)
        except DamagedDataError as error:
            self._log.error("from %s: %s", request.peer_name, error)
            request.fail(ErrorCode.DAMAGED_DATA, str(error))
        except BaseException as error:
            closing = isinstance(error, asyncio.CancelledError)
            if not request.answered:
                code = ErrorCode.SHUTTING_DOWN if closing else ErrorCode.INTERNAL
                request.fail(code, "the server is closing" if closing else UNEXPECTED)
            raise
        finally:
            request.lease.release()

    def _take_in(self, request: Request, records: Sequence[CopyRecord]) -> None:
        self.kept_records += len(records)
        peer = request.peer
        self._do(self.core.requested(request, peer.node, request.message, records, self._event_s()))

    def reply(self, instruction: Reply) -> None:
        """Answers another server."""
        size_bytes = _size_bytes(instruction.records)
        if size_bytes <= INLINE_BYTES_MAX:
            body = self._encode(instruction.records) if instruction.records else ()
            _answer(instruction, body)
        else:
            self._spawn(self._reply(instruction))

    async def _reply(self, instruction: Reply) -> None:
        try:
            body = await self._in_thread(self._encode, instruction.records)
        except BaseException:
            release(instruction.images)
            if not instruction.token.answered:
                instruction.token.fail(ErrorCode.INTERNAL, UNEXPECTED)
            raise
        _answer(instruction, body)

    # --- our requests -----------------------------------------------------------------------------------------------

    def ask(self, instruction: Ask) -> None:
        """Sends a request to another server."""
        self._spawn(self._ask(instruction))

    async def _ask(self, ask: Ask) -> None:
        until_s = self._loop.time() + ask.deadline_s
        records: Sequence[CopyRecord] = ()
        try:
            try:
                size_bytes = _size_bytes(ask.records)
                body: Sequence[Any] = ()
                if ask.records and size_bytes <= INLINE_BYTES_MAX:
                    body = self._encode(ask.records)
                elif ask.records:
                    body = await self._in_thread(self._encode, ask.records)
                self.asked_records += len(ask.records)
                self.asked_bytes += size_bytes
                left_s = max(until_s - self._loop.time(), SOON_S)
                answer = await self._links.request(ask.peer, ask.message, body, deadline_s=left_s)
            finally:
                release(ask.images)
            try:
                if len(answer.body) <= INLINE_BYTES_MAX:
                    records = self._own(answer.body)
                else:
                    records = await self._in_thread(self._own, answer.body)
            finally:
                answer.release()
        except RemoteError as error:
            self._do(self.core.refused(ask.order, str(error), self._event_s()))
        except Exception as error:  # any failure: the core waits for the outcome
            self._do(self.core.failed(ask.order, str(error), self._event_s()))
            if not isinstance(error, AdamctlError):
                raise
        else:
            incarnation = self._links.incarnation(ask.peer)
            self._do(self.core.answered(ask.order, answer.message, records, incarnation, self._event_s()))

    # --- the configuration service ----------------------------------------------------------------------------------

    def propose(self, instruction: Propose) -> None:
        """Changes records with a compare-and-set."""
        self._spawn(self._propose(instruction))

    async def _propose(self, propose: Propose) -> None:
        reply = None
        try:
            reply = await self._store.compare_and_set(propose.changes)
            outcome = "another change came first" if reply.conflicts else f"revision {reply.revision}"
            self._log.debug("job %s: %s (%s)", propose.job, propose.why, outcome)
        except (UnreachableError, RemoteError) as error:
            self._log.warning("job %s: %s: the outcome is unknown: %s", propose.job, propose.why, error)
        except Exception:
            self._do(self.core.proposed(propose.order, None, self._event_s()))
            raise
        self._do(self.core.proposed(propose.order, reply, self._event_s()))

    def notice(self, instruction: Notice) -> None:
        """Writes to the log."""
        log = self._log.warning if instruction.warning else self._log.info
        log("job %s: %s", instruction.job, instruction.text)

    # --- threads and status -----------------------------------------------------------------------------------------

    async def _in_thread(self, function: Callable[[Any], Any], argument: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "replication")
        return await self._loop.run_in_executor(self._threads, function, argument)

    def status(self) -> dict[str, Any]:
        """Plain values for `adamctl status`; rates cover the last few seconds."""
        counters = {
            "records": float(self.asked_records),
            "bytes": float(self.asked_bytes),
            "kept": float(self.kept_records),
        }
        rates = self._rates.sample(self._loop.time(), counters)
        kept = self.core.kept(self.spared)
        return {
            "jobs": {
                name: _job_status(buckets) | {"kept": {bucket: one.values() for bucket, one in kept[name].items()}}
                for name, buckets in self.core.status().items()
            },
            "records": self.asked_records,
            "bytes": self.asked_bytes,
            "records_per_s": rates["records"],
            "bytes_per_s": rates["bytes"],
            "records_kept": self.kept_records,
            "records_kept_per_s": rates["kept"],
            "lease": self._context.lease.valid(),
        }


def _job_status(buckets: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns how many of a job's buckets this server has in each part, and what its own buckets still lack."""
    parts = Counter(str(bucket["part"]) for bucket in buckets.values())
    members = [state for bucket in buckets.values() for state in bucket["members"].values()]
    return {
        "primary": parts.pop("primary", 0),
        "secondary": parts.pop("copy", 0),
        "learner": parts.pop("learner", 0),
        "other": dict(parts),
        "members_in_sync": sum(state == "in_sync" for state in members),
        "members_learning": sum(state in ("learner", "counted") for state in members),
        "shards_waiting": sum(int(bucket["left"]) for bucket in buckets.values()),
    }


def _size_bytes(records: Sequence[CopyRecord]) -> int:
    return 4 * sum(sum(record.copy.lengths) for record in records)


def _answer(instruction: Reply, body: Sequence[Any]) -> None:
    images = instruction.images
    if instruction.token.answered:
        release(images)
        return
    try:
        instruction.token.reply(instruction.message, body, lambda: release(images))
    except ValueError as error:  # too large for a frame
        release(images)
        instruction.token.fail(ErrorCode.WRONG_LENGTH, str(error))


def release(images: Sequence[Image]) -> None:
    """Releases images that were held to be sent."""
    for image in images:
        image.release()

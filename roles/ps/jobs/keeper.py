"""Follows the jobs of the cluster and carries out what `core/job_keeping.py` makes of them on this server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from adamctl.config.records import NodeRecord, ServedRecord, encode, node_key, served_key
from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.roles.configuration import ConfigurationStore, follow, read_record
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.core.instructions import (
    AddJob,
    FreeFull,
    FreeJob,
    FreeStored,
    GiveUp,
    Instruction,
    KeepUnknown,
    Replicate,
    Unload,
)
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.job_keeping import JobKeeping, identity_of
from adamctl.roles.ps.core.job_records import JOBS_PREFIX, Fate, JobKeys, JobView, Unknown
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.memory_budget import MemoryAccount
from adamctl.roles.ps.replication.shell import ReplicationShell
from adamctl.roles.ps.store.flusher import StoreWriter
from adamctl.roles.ps.store.log_index import Holdings
from adamctl.roles.ps.store.record import JobIdentity
from adamctl.roles.ps.store.recovered_jobs import FoundJob
from adamctl.roles.rooted import Roots
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges

CONTROLLER_PAUSE_S = 0.5
CONFLICT_PAUSE_S = 0.05
LOOKS = 4
LOOK_EVERY_S = 60.0
"""A job that is unknown is looked for so often, and at least so many times before it is freed."""


async def _nothing(rule: RuleConfig) -> None:
    return


class JobKeeper:
    """Follows `/jobs/` and tells the core. Used on the event loop only."""

    def __init__(
        self,
        context: RoleContext,
        core: ServerCore,
        storing: StoreWriter | None,
        memory_bytes_max: int,
        carry_out: Callable[[list[Instruction]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`carry_out` does what the core says; `spawn` runs work in the background."""
        assert context.controller is not None
        self._context, self._log, self._core, self._storing = context, context.log, core, storing
        self._store: ConfigurationStore = context.controller
        core.unknown.begin(told=False)
        self.memory = MemoryAccount(context.node, memory_bytes_max, self._memory_bytes, self._unload)
        self.replicating: ReplicationShell | None = None
        self.roots = Roots((), "--checkpoint-root")
        self.prepare: Callable[[RuleConfig], Awaitable[None]] = _nothing
        """Gets ready for a rule before a job of it is taken up."""
        self._carry_out, self._spawn = carry_out, spawn
        self._keys = JobKeys()
        self.registered_revision = 0
        """Of our node key; buckets placed before it were placed on earlier processes of our name."""
        self.keeping = JobKeeping(context.node, core, self._keys, storing is not None)
        self._refreshing: set[str] = set()
        self._told: dict[tuple[str, int], bool] = {}  # (job, its revision) -> what `tell_served` has returned

    async def follow(self) -> None:
        """Keeps up with `/jobs/`; without the controller, what is served is served on. Never returns."""
        while True:
            try:
                if not self.registered_revision:
                    self.registered_revision = await self._own_revision()
                    assert self.replicating is not None
                    self.replicating.registered(self.registered_revision)
                async for changes in follow(self._store, JOBS_PREFIX):
                    for name in sorted(self._keys.take(changes)):
                        view = self._keys.view(name)
                        if view is not None and name not in self._core.jobs:
                            await self.prepare(view.record.rule)
                        self._reconcile(name)
                    if not self._core.unknown.told:
                        self._core.unknown.begin(told=True)
                    self._do(self.keeping.stored(sorted({(one.name, one.born) for one in self._stored()})))
            except UnreachableError as error:
                self._log.warning("the controller cannot be reached, jobs are served on: %s", error)
                await asyncio.sleep(CONTROLLER_PAUSE_S)

    async def _own_revision(self) -> int:
        """Returns the revision of our node key, by which what was placed on a former process of our name is known.

        Without a key we are no member, and what was placed on whom cannot be told: then nothing of any job is touched.
        Our beacons learn of it too, and end this process.
        """
        while True:
            found = await read_record(self._store, node_key(self._context.node), NodeRecord)
            if self._context.membership is None:  # nobody issues incarnations, or gives anybody up
                return found[1] if found is not None else 0
            if found is not None and found[0].incarnation == self._context.incarnation:
                return found[1]
            self._log.warning("%s is not a member (any more); it takes up no job", self._context.node)
            await asyncio.sleep(CONTROLLER_PAUSE_S)

    def _memory_bytes(self) -> int:
        """Returns what is served takes, and what has been read from the store for it."""
        loaded_bytes = self._storing.holdings.loaded_bytes if self._storing is not None else 0
        return sum(job.size_bytes for job in self._core.jobs.values()) + loaded_bytes

    def _unload(self) -> None:
        if self._storing is not None:
            self._storing.holdings.unload_all()

    def views(self) -> dict[str, JobView]:
        """Returns the running jobs that can be read."""
        return self._keys.running()

    def view(self, name: str) -> JobView | None:
        """Returns what is known of a job."""
        return self._keys.view(name)

    def coordinator(self, name: str) -> str:
        """Returns who coordinates a job, "" if nobody; asked for each request of a coordinator."""
        return self._keys.coordinator(name)

    def refresh(self, name: str) -> None:
        """Reads a job's keys again: somebody knows a newer epoch than we do."""
        if name not in self._refreshing:
            self._refreshing.add(name)
            self._spawn(self._reread(name))

    async def _reread(self, name: str) -> None:
        try:
            revision, entries = await self._store.read(f"{JOBS_PREFIX}{name}")
            self._keys.take_job(name, entries, revision)
            self._reconcile(name)
        except UnreachableError as error:
            self._log.warning("job %s: %s", name, error)
        finally:
            self._refreshing.discard(name)

    # --- what is held and what should be ----------------------------------------------------------------------------

    def _reconcile(self, name: str) -> None:
        """Makes what we hold of a job agree with its keys."""
        self._do(self.keeping.changed(name))

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case KeepUnknown(text):
                    self._log.error("%s", text)
                case FreeJob(name):
                    self._free(name)
                case AddJob(name, view):
                    self._add(name, view)
                case GiveUp(job, text):
                    self._log.error("job %s: %s", job.name, text)
                case Unload(name, born):
                    for identity in self._stored_of(name, born):
                        self._holdings.unload(self._stored()[identity])
                case FreeStored(name, born, why):
                    self._free_stored(name, born, why)
                case FreeFull(name, view):
                    self._holdings.free_full(stored_identity(name, view), view, self._context.node)
                case Replicate(name, view):
                    assert self.replicating is not None
                    self.replicating.configure(name, view)
                case _:
                    self._carry_out([instruction])

    @property
    def _holdings(self) -> Holdings:
        assert self._storing is not None
        return self._storing.holdings

    def _free(self, name: str) -> None:
        if self.replicating is not None:
            self.replicating.over(name)
        self._carry_out(self._core.remove_job(name))
        self.memory.free_copies(name)
        self._told = {key: first for key, first in self._told.items() if key[0] != name}
        if self._storing is not None:
            self._storing.holdings.release(name)
        self._log.info("job %s is freed", name)

    def _stored(self) -> dict[JobIdentity, FoundJob]:
        """Returns what the store holds of jobs that are not served."""
        return self._storing.holdings.found if self._storing is not None else {}

    def _stored_of(self, name: str, born: int) -> list[JobIdentity]:
        return [identity for identity in self._stored() if (identity.name, identity.born) == (name, born)]

    def _free_stored(self, name: str, born: int, why: str) -> None:
        for identity in self._stored_of(name, born):
            self._holdings.forget_found(identity)
            self._log.warning("the store's records of job %s are freed: %s", name, why)

    async def forget_unknown(self, delay_s: float) -> None:
        """Frees jobs that no majority of the controllers has known for `delay_s`. Never returns."""
        unknown = Unknown(delay_s)
        while True:
            await asyncio.sleep(min(delay_s / LOOKS, LOOK_EVERY_S))
            self._unload()  # what has not been asked for by now is read again if it is
            held = [(name, job.identity[0]) for name, job in self._core.jobs.items()]
            for name, born in sorted({*held, *((one.name, one.born) for one in self._stored())}):
                if self._keys.fate(name, born) is Fate.UNKNOWN:
                    await self._reread(name)  # an answer that a majority has confirmed
                if unknown.look(name, born, self._keys.fate(name, born), asyncio.get_running_loop().time()):
                    self._free_unknown(name, born, f"no controller has known it for {delay_s:g} s")

    def _free_unknown(self, name: str, born: int, why: str) -> None:
        job = self._core.jobs.get(name)
        if job is not None and job.identity[0] == born:
            self._free(name)
        self._free_stored(name, born, why)

    def _add(self, name: str, view: JobView) -> None:
        try:
            job = Job(name, view.layout, make_rule(view.record.rule), identity_of(view))
        except ConfigurationError as error:
            self._log.error("job %s: %s", name, error)
            return
        job.durable = view.record.acks == "durable"
        self._core.add_job(job)
        self._do(self.keeping.added(job, view))

    # --- what others are told, and why a job is given up --------------------------------------------------------------

    def is_told(self, job: Job) -> bool:
        """Returns whether this process has recorded that it serves buckets of a job, or is about to."""
        return (job.name, job.identity[0]) in self._told

    async def tell_served(self, job: Job, view: JobView) -> bool:
        """Records that this server serves buckets of a job, or is about to; returns when everybody can know.

        Returns whether no earlier process of our name had been about to: False also if the job is over.
        """
        if self.is_told(job):
            return self._told[job.name, job.identity[0]]
        key, mine = served_key(job.name, self._context.node), self._context.incarnation
        while self._core.jobs.get(job.name) is job:
            try:
                reply = await self._store.compare_and_set(ConfigChanges({key: 0}, {key: encode(ServedRecord(mine))}))
                found = await read_record(self._store, key, ServedRecord) if reply.conflicts else None
                first = not reply.conflicts or (found is not None and found[0].incarnation == mine)
                self._told[job.name, job.identity[0]] = first
                return first
            except UnreachableError as error:
                self._log.warning("job %s: %s", job.name, error)
                await asyncio.sleep(CONTROLLER_PAUSE_S)
        return False

    def fail(self, job: Job, code: ErrorCode, text: str) -> None:
        """Serves nothing of a job, and says why."""
        self._do(self.keeping.give_up(job, code, text))

    def not_made(self, job: Job, error: Exception) -> None:
        """Serves nothing of a job whose buckets could not be made."""
        self._do(self.keeping.not_made(job, error))


def stored_identity(name: str, view: JobView) -> JobIdentity:
    """Returns what records of a job in the store name it by."""
    return JobIdentity(name, view.revision, view.record.layout_hash, view.record.rule.name)

"""Follows the jobs of the cluster and carries out what `core/job_keeping.py` makes of them on this server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from adamctl.config.records import NodeRecord, ServedRecord, encode, node_key, served_key
from adamctl.errors import AdamctlError, ConfigurationError, UnreachableError
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.roles.configuration import ConfigurationStore, follow, read_record
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.core import job_keeping as keeping
from adamctl.roles.ps.core.instructions import Instruction
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.job_keeping import JobKeeping, Stock, identity_of
from adamctl.roles.ps.core.job_records import JOBS_PREFIX, Fate, JobKeys, JobView, Unknown
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.initial_values import build_buckets, bytes_needed
from adamctl.roles.ps.memory_budget import MemoryAccount
from adamctl.roles.ps.replication.shell import ReplicationShell
from adamctl.roles.ps.store.flusher import StoreWriter
from adamctl.roles.ps.store.log_index import Holdings
from adamctl.roles.ps.store.record import JobIdentity
from adamctl.roles.ps.store.recovered_jobs import FoundJob, entries_that_count, found_contents
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
        self.keeping = JobKeeping(context.node, core, self._keys, storing is not None)
        self._refreshing: set[str] = set()
        self._resumed: dict[JobIdentity, FoundJob] = {}

    async def follow(self) -> None:
        """Keeps up with `/jobs/`; without the controller, what is served is served on. Never returns."""
        while True:
            try:
                if not self.keeping.registered_revision:
                    self.keeping.registered_revision = await self._own_revision()
                    if self.replicating is not None:
                        self.replicating.registered(self.keeping.registered_revision)
                async for changes in follow(self._store, JOBS_PREFIX):
                    for name in sorted(self._keys.take(changes)):
                        view = self._keys.view(name)
                        if view is not None and name not in self._core.jobs:
                            await self.prepare(view.record.rule)
                        self._reconcile(name)
                    if not self._core.unknown.told:
                        self._core.unknown.begin(told=True)
                    self._forget_ended()
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

    def view(self, name: str) -> JobView | None:
        """Returns what is known of a job."""
        return self._keys.view(name)

    def refresh(self, name: str) -> None:
        """Reads a job's keys anew: somebody knows a newer epoch than we do."""
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
                case keeping.KeepUnknown(text):
                    self._log.error("%s", text)
                case keeping.FreeJob(name):
                    self._free(name)
                case keeping.AddJob(name, view):
                    self._add(name, view)
                case keeping.LookAt(job, view):
                    self._look_at(job, view)
                case keeping.GiveUp(job, text):
                    self._log.error("job %s: %s", job.name, text)
                case keeping.FreeFull(name, view):
                    self._holdings.free_full(stored_identity(name, view), view, self._context.node)
                case keeping.Replicate(name, view):
                    assert self.replicating is not None
                    self.replicating.configure(name, view)
                case keeping.TakeUp(name, view):
                    found = self._found(name, view)
                    assert found is not None
                    self._resumed[found.holding.job] = found
                case keeping.RaiseEpochs():
                    self._spawn(self._raise_epochs(instruction))
                case keeping.Make():
                    self._spawn(self._build(instruction))
                case keeping.ForgetFound(name, view):
                    self._holdings.forget_found(stored_identity(name, view))
                case _:
                    self._carry_out([instruction])

    def _look_at(self, job: Job, view: JobView) -> None:
        found = self._found(job.name, view)
        stored = {bucket: epoch for bucket, (epoch, _) in found.holding.buckets.items()} if found is not None else None
        copied = self.replicating is not None and self._has_copies(job.name, view, job)
        self._do(self.keeping.looked(job, view, Stock(stored, copied)))

    @property
    def _holdings(self) -> Holdings:
        assert self._storing is not None
        return self._storing.holdings

    def _has_copies(self, name: str, view: JobView, job: Job) -> bool:
        """Says whether a job is kept by the replication core.

        One with a single copy is while it has others for a while, or is to move; but what we serve of it alone is made,
        and taken up again from the store, before.
        """
        assert self.replicating is not None
        if view.record.replication > 1 or self.replicating.handles(name):
            return True
        if not self.replicating.draining and not any(
            len(bucket.in_sync) > 1 or bucket.learners for bucket in view.buckets.values()
        ):
            return False
        return not job.resuming and view.held_alone(self._context.node) <= job.buckets.keys()

    def reconcile_all(self) -> None:
        """Looks at every job anew: servers are to be emptied, or are no longer."""
        for name in sorted(self._keys.jobs):
            self._reconcile(name)

    def _free(self, name: str) -> None:
        if self.replicating is not None:
            self.replicating.over(name)
        self._carry_out(self._core.remove_job(name))
        self.memory.free_copies(name)
        if self._storing is not None:
            self._storing.holdings.release(name)
            for identity in [identity for identity in self._resumed if identity.name == name]:
                self._storing.holdings.forget_rest(self._resumed.pop(identity))
        self.keeping.freed(name)
        self._log.info("job %s is freed", name)

    def _forget_ended(self) -> None:
        """Frees records of jobs that have ended; those that nobody knows are kept, on disk only."""
        for identity, found in self._unserved():
            fate = self._keys.fate(identity.name, identity.born)
            if fate is not Fate.RUNNING:
                assert self._storing is not None
                self._storing.holdings.unload(found)
            if fate is Fate.ENDED:
                self._forget(identity, "it has ended")

    def _unserved(self) -> list[tuple[JobIdentity, FoundJob]]:
        return list(self._storing.holdings.found.items()) if self._storing is not None else []

    def _forget(self, identity: JobIdentity, why: str) -> None:
        assert self._storing is not None
        self._storing.holdings.forget_found(identity)
        self._log.warning("the store's records of job %s are freed: %s", identity.name, why)

    async def forget_unknown(self, delay_s: float) -> None:
        """Frees jobs that no majority of the controllers has known for `delay_s`. Never returns."""
        unknown = Unknown(delay_s)
        while True:
            await asyncio.sleep(min(delay_s / LOOKS, LOOK_EVERY_S))
            self._unload()  # what has not been asked for by now is read again if it is
            held = [(name, job.identity[0]) for name, job in self._core.jobs.items()]
            for name, born in {*held, *((identity.name, identity.born) for identity, _ in self._unserved())}:
                if self._keys.fate(name, born) is Fate.UNKNOWN:
                    await self._reread(name)  # an answer that a majority has confirmed
                if unknown.look(name, born, self._keys.fate(name, born), asyncio.get_running_loop().time()):
                    self._free_unknown(name, born, f"no controller has known it for {delay_s:g} s")

    def _free_unknown(self, name: str, born: int, why: str) -> None:
        job = self._core.jobs.get(name)
        if job is not None and job.identity[0] == born:
            self._free(name)
        for identity, _ in self._unserved():
            if (identity.name, identity.born) == (name, born):
                self._forget(identity, why)

    def _add(self, name: str, view: JobView) -> None:
        try:
            job = Job(name, view.layout, make_rule(view.record.rule), identity_of(view))
        except ConfigurationError as error:
            self._log.error("job %s: %s", name, error)
            return
        job.durable = view.record.acks == "durable"
        self._core.add_job(job)
        self._look_at(job, view)

    def _found(self, name: str, view: JobView) -> FoundJob | None:
        """Returns what the store was found to hold of this very job."""
        return self._storing.holdings.found.get(stored_identity(name, view)) if self._storing is not None else None

    async def _raise_epochs(self, instruction: keeping.RaiseEpochs) -> None:
        name = instruction.job
        self._log.info("%s", instruction.text)
        try:
            reply = await self._store.compare_and_set(instruction.changes)
            if reply.conflicts:
                self._log.warning("job %s: not done; changed meanwhile: %s", name, ", ".join(reply.conflicts[:4]))
                await asyncio.sleep(CONFLICT_PAUSE_S)
        except UnreachableError as error:  # perhaps done: the keys will tell
            self._log.warning("job %s: %s", name, error)
            await asyncio.sleep(CONTROLLER_PAUSE_S)
        finally:
            following = self.keeping.raised(name)
        self._do(following)

    # --- making buckets ---------------------------------------------------------------------------------------------

    async def _build(self, instruction: keeping.Make) -> None:
        """Makes buckets in a thread, or reads them back, and begins to serve them; or says why the job has failed."""
        job, view, buckets = instruction.job, instruction.view, instruction.buckets
        try:
            needed_bytes = bytes_needed(job.layout, buckets, job.rule)
            problem = self.memory.problem(job.name, needed_bytes)
            for following in self.keeping.measured(job, view, buckets, problem):
                if isinstance(following, keeping.BuildBuckets):
                    await self._make(following, needed_bytes)
                else:
                    self._do([following])
        except (AdamctlError, OSError) as error:
            self._do(self.keeping.not_built(job, error))
        except Exception as error:
            self._log.exception("job %s: its buckets could not be made", job.name)
            self._do(self.keeping.not_built(job, error))

    async def _make(self, instruction: keeping.BuildBuckets, needed_bytes: int) -> None:
        job, view, buckets = instruction.job, instruction.view, instruction.buckets
        found = self._resumed[stored_identity(job.name, view)] if instruction.stored else None
        self.memory.begin(job.name, needed_bytes)
        try:
            contents = await asyncio.to_thread(self._contents, job, view, buckets, found)
            for following in self.keeping.built(job, view, buckets):
                match following:
                    case keeping.WriteHolding(_, epochs):
                        assert self._storing is not None
                        await self._storing.hold(stored_identity(job.name, view), dict(epochs))
                    case keeping.TellServed():
                        await self.tell_served(job, view)
        finally:
            self.memory.end(job.name, needed_bytes)
        for following in self.keeping.told(job, view, buckets):
            if isinstance(following, keeping.Serve):
                self._serve(following, contents, found, buckets)

    def _serve(
        self,
        instruction: keeping.Serve,
        contents: dict[int, list[ShardContent]],
        found: FoundJob | None,
        built: Sequence[int],
    ) -> None:
        """`built`: buckets whose contents were made, of which some may be wanted no more."""
        job, view = instruction.job, instruction.view
        entries = entries_that_count(found, job.layout, _held(found, built)) if found is not None else {}
        for bucket in instruction.buckets:
            job.install(job.layout.buckets[bucket], contents[bucket], self._core.threads)
            if self._storing is not None:
                identity, restored = stored_identity(job.name, view), bool(view.record.restore)
                self._storing.holdings.adopt(job, bucket, identity, entries, restored)
                if found is not None:  # it is never taken up twice
                    self._storing.holdings.resumed(found, job.layout.buckets[bucket], entries)
        self._log.info(
            "job %s: serving %d buckets, %d shards, %.1f MiB%s", job.name, len(job.buckets), len(job.shards),
            job.size_bytes / (1 << 20), f", {len(entries)} shards of them from the store" if found is not None else "",
        )  # fmt: skip
        if self.replicating is not None:
            self._reconcile(job.name)  # it may have to move

    async def tell_served(self, job: Job, view: JobView) -> None:
        """Returns when everybody can know that we have served buckets of a job; a conflict says that they do."""
        key = served_key(job.name, self._context.node)
        while self.keeping.untold(job, view):
            try:
                served = encode(ServedRecord(self._context.incarnation))
                await self._store.compare_and_set(ConfigChanges({key: 0}, {key: served}))
                return
            except UnreachableError as error:
                self._log.warning("job %s: %s", job.name, error)
                await asyncio.sleep(CONTROLLER_PAUSE_S)

    def _contents(
        self, job: Job, view: JobView, buckets: Sequence[int], found: FoundJob | None
    ) -> dict[int, list[ShardContent]]:
        """Blocking."""
        record = view.record

        def stored(bucket: int) -> dict[int, ShardContent]:
            if found is None or bucket not in found.holding.buckets:
                return {}
            assert self._storing is not None
            return found_contents(self._storing.store, found, job.layout, [bucket], job.rule)

        self.roots.check(record.restore)
        return build_buckets(job.layout, buckets, job.rule, record.seed, record.restore, stored)

    def fail(self, job: Job, code: ErrorCode, text: str) -> None:
        """Serves nothing of a job, and says why."""
        self._do(self.keeping.give_up(job, code, text))

    def not_built(self, job: Job, error: Exception, what: str) -> None:
        """Serves nothing of a job of which something could not be made."""
        self._do(self.keeping.not_built(job, error, what))


def _held(found: FoundJob, buckets: Sequence[int]) -> list[int]:
    return [bucket for bucket in buckets if bucket in found.holding.buckets]


def stored_identity(name: str, view: JobView) -> JobIdentity:
    """Returns what records of a job in the store name it by."""
    return JobIdentity(name, view.revision, view.record.layout_hash, view.record.rule.name)

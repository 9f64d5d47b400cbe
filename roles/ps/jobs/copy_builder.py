"""Copies of buckets as the replication core asks for them: made, read back from the store, given places in its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from adamctl.errors import AdamctlError, DamagedDataError
from adamctl.roles.context import RoleContext
from adamctl.roles.ps.client.remote_checkpoint import Start, checkpoint_place
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.instructions import Build, Holds, Instruction, LetGo, Load
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.initial_values import build_buckets, bytes_needed
from adamctl.roles.ps.jobs.keeper import JobKeeper, stored_identity
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.roles.ps.replication.core.recovery import Kept
from adamctl.roles.ps.replication.shell import ReplicationShell
from adamctl.roles.ps.store.flusher import StoreWriter
from adamctl.roles.ps.store.recovered_jobs import FoundJob, entries_that_count, found_contents
from adamctl.wire.constants import ErrorCode


class Copies:
    """Used on the event loop only."""

    def __init__(
        self,
        context: RoleContext,
        core: ServerCore,
        storing: StoreWriter | None,
        keeper: JobKeeper,
        replicating: ReplicationShell,
        carry_out: Callable[[list[Instruction]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._context, self._node, self._log = context, context.node, context.log
        self._core, self._storing, self._keeper, self._replicating = core, storing, keeper, replicating
        self._carry_out, self._spawn = carry_out, spawn
        self._loaded: dict[tuple[str, int], dict[int, Entry]] = {}

    # --- contents ---------------------------------------------------------------------------------------------------

    def build(self, instruction: Build) -> None:
        """Makes buckets as their job began."""
        self._begin(instruction, self._build)

    def load(self, instruction: Load) -> None:
        """Reads buckets back from the store, or makes those that nobody has ever served.

        What the store has of those counts all the same: a restored configuration may be older than the first push.
        """
        there = self._with_records(instruction) if instruction.initial else instruction.buckets
        if there:
            self._begin(Load(instruction.job, there, False), self._load)
        left = [bucket for bucket in instruction.buckets if bucket not in there]
        if left:
            self._begin(Load(instruction.job, left, True), self._begin_again)

    def _with_records(self, instruction: Load) -> list[int]:
        """Returns the buckets of which the store has shards."""
        view = self._keeper.view(instruction.job)
        found = self._found(instruction.job, view) if view is not None else None
        if view is None or found is None:
            return []
        held = [bucket for bucket in instruction.buckets if bucket in found.holding.buckets]
        return [bucket for bucket in held if entries_that_count(found, view.layout, [bucket])]

    def _begin(
        self,
        instruction: Build | Load,
        work: Callable[[Job, JobView, Sequence[int], Start], Coroutine[Any, Any, list[Instruction]]],
    ) -> None:
        job, view = self._core.jobs.get(instruction.job), self._keeper.view(instruction.job)
        if job is None or view is None or job.failed is not None:
            return  # it has ended meanwhile
        needed_bytes = bytes_needed(job.layout, instruction.buckets, job.rule)
        problem = self._keeper.memory.problem(job.name, needed_bytes)
        if problem is not None:
            self._keeper.fail(job, ErrorCode.OVER_QUOTA, problem)
            return
        self._keeper.memory.begin(job.name, needed_bytes)  # before anybody else asks what there is
        self._spawn(self._make(job, needed_bytes, view, instruction.buckets, work))

    async def _make(
        self,
        job: Job,
        needed_bytes: int,
        view: JobView,
        buckets: Sequence[int],
        work: Callable[[Job, JobView, Sequence[int], Start], Coroutine[Any, Any, list[Instruction]]],
    ) -> None:
        try:
            start, remote = await checkpoint_place(self._context, job.name, view.record, self._keeper.roots)
            try:
                instructions = await work(job, view, buckets, start)
            finally:
                if remote is not None:
                    await remote.close()
        except (AdamctlError, OSError) as error:
            self._keeper.not_made(job, error)
        except Exception as error:
            self._log.exception("job %s: its buckets could not be made", job.name)
            self._keeper.not_made(job, error)
        else:
            self._carry_out(instructions)
        finally:
            self._keeper.memory.end(job.name, needed_bytes)
            for bucket in buckets:
                self._loaded.pop((job.name, bucket), None)  # of what is not held after all

    async def _build(self, job: Job, view: JobView, buckets: Sequence[int], start: Start) -> list[Instruction]:
        contents, _ = await self._as_begun(job, view, buckets, start)
        instructions = self._replicating.built(job.name, contents) if self._keeper.keeping.wanted(job) else []
        self._free_unwanted(job, view, buckets)
        return instructions

    async def _begin_again(self, job: Job, view: JobView, buckets: Sequence[int], start: Start) -> list[Instruction]:
        contents, first = await self._as_begun(job, view, buckets, start)
        instructions: list[Instruction] = []
        if self._keeper.keeping.wanted(job):
            self._log.info("job %s: %d buckets that nobody has served are made as it began", job.name, len(buckets))
            found = contents if first else dict.fromkeys(buckets)  # not first: they have been served after all
            instructions = self._replicating.loaded(job.name, found)
        self._free_unwanted(job, view, buckets)
        return instructions

    async def _as_begun(
        self, job: Job, view: JobView, buckets: Sequence[int], start: Start
    ) -> tuple[dict[int, list[ShardContent]], bool]:
        """Makes buckets as their job began; on return, disk and configuration say that they are about to be served.

        Also returns whether no earlier process of our name was about to serve buckets of the job.
        """
        record = view.record
        begun = record.seed, start, record.parameters_only
        contents = await asyncio.to_thread(build_buckets, job.layout, buckets, job.rule, *begun)
        if self._storing is not None and self._keeper.keeping.wanted(job):
            identity = stored_identity(job.name, view)
            self._storing.holdings.free_found(identity, [job.layout.buckets[bucket] for bucket in buckets])
            await self._storing.hold(identity, {bucket: view.buckets[bucket].epoch for bucket in buckets})
        return contents, await self._keeper.tell_served(job, view)

    def _free_unwanted(self, job: Job, view: JobView, buckets: Sequence[int]) -> None:
        """Notes on disk that buckets are not held after all, as they have moved while they were made."""
        if self._storing is not None and self._core.jobs.get(job.name) is job:
            held = job.buckets.keys() | self._replicating.core.copies(job.name).keys()
            for bucket in set(buckets) - held:
                self._storing.holdings.let_go(stored_identity(job.name, view), bucket)

    async def _load(self, job: Job, view: JobView, buckets: Sequence[int], start: Start) -> list[Instruction]:
        contents: dict[int, list[ShardContent] | None] = dict.fromkeys(buckets)
        left = list(buckets)
        while (found := self._found(job.name, view)) is not None:
            there = [bucket for bucket in left if bucket in found.holding.buckets]
            if not there:
                break
            read = await self._read_as_found(job, view, there, found, start)
            if self._core.jobs.get(job.name) is not job:
                return []
            contents |= read
            left = [bucket for bucket in there if bucket not in read]
        count = sum(content is not None for content in contents.values())
        self._log.info("job %s: the store has %d of %d buckets that were asked for", job.name, count, len(buckets))
        return self._replicating.loaded(job.name, contents)

    async def _read_as_found(
        self, job: Job, view: JobView, buckets: Sequence[int], found: FoundJob, start: Start
    ) -> dict[int, list[ShardContent] | None]:
        """Reads buckets from the store; without those whose records were freed or became others meanwhile."""

        def standing() -> dict[int, object]:
            now = self._found(job.name, view)
            return {bucket: now and now.standing(job.layout, bucket) for bucket in buckets}

        before, part = standing(), found.part(job.layout, buckets)
        try:
            read = await asyncio.to_thread(self._read_back, job, view, buckets, part, start)
        except Exception:
            if standing() == before:
                raise
            read = {}  # what the thread read was freed under it
        now, after = self._found(job.name, view), standing()
        same = {bucket: content for bucket, content in read.items() if after[bucket] == before[bucket]}
        for bucket in (bucket for bucket, content in same.items() if content is not None):
            assert now is not None
            self._loaded[job.name, bucket] = entries_that_count(now, job.layout, [bucket])
        return same

    def _found(self, name: str, view: JobView) -> FoundJob | None:
        return self._storing.holdings.found.get(stored_identity(name, view)) if self._storing is not None else None

    def _read_back(
        self, job: Job, view: JobView, buckets: Sequence[int], found: FoundJob, start: Start
    ) -> dict[int, list[ShardContent] | None]:
        """Reads buckets from the store; blocking. None of those that are not all there: another server may have them.

        Such a bucket had not wholly come from another server, or not to this one's disk as that was full; or it is of
        a job that was restored, and no checkpoint has the rest.
        """
        assert self._storing is not None
        store, layout, record = self._storing.store, job.layout, view.record

        def stored(bucket: int) -> dict[int, ShardContent]:
            return found_contents(store, found, layout, [bucket], job.rule)

        contents: dict[int, list[ShardContent] | None] = {}
        for bucket in buckets:
            if found.is_partial(layout, bucket):
                self._log.warning("job %s: the store has bucket %d in part: not all of it had come", job.name, bucket)
                contents[bucket] = None
                continue
            try:
                begun = record.seed, start, record.parameters_only
                contents |= build_buckets(layout, [bucket], job.rule, *begun, stored)
            except DamagedDataError as error:
                described = layout.buckets[bucket]
                shards = described.shard_stop - described.shard_start
                if not record.restore or len(entries_that_count(found, layout, [bucket])) == shards:
                    raise
                self._log.warning("job %s: the store has bucket %d in part, and %s", job.name, bucket, error)
                contents[bucket] = None
        return contents

    # --- what is held -----------------------------------------------------------------------------------------------

    def holds(self, instruction: Holds) -> None:
        """A copy of a bucket is held from now on: it counts against the memory, and has places in the log."""
        name, bucket = instruction.job, instruction.bucket
        job, view = self._core.jobs.get(name), self._keeper.view(name)
        if job is None or view is None:
            return
        told = self._node in view.served or self._keeper.is_told(job)  # the watch may lag
        if view.record.replication == 1 and not told:  # before it can be ours alone
            self._spawn(self._tell(job, view))
        self._keeper.memory.copies.pop((name, bucket), None)
        shards: Iterable[Shard | HeldShard]
        identity = stored_identity(name, view)
        if instruction.serves:
            if bucket not in job.buckets:
                return
            described = job.layout.buckets[bucket]
            shards = [job.shards[index] for index in range(described.shard_start, described.shard_stop)]
        else:
            held = self._replicating.core.copies(name).get(bucket)
            if held is None:
                return
            self._keeper.memory.copies[name, bucket] = bytes_needed(job.layout, [bucket], job.rule)
            shards = held.shards.values()
        if self._storing is not None:
            loaded, restored = self._loaded.pop((name, bucket), None), bool(view.record.restore)
            self._storing.holdings.keep(identity, bucket, instruction.epoch, shards, loaded, restored)

    async def _tell(self, job: Job, view: JobView) -> None:
        await self._keeper.tell_served(job, view)

    def kept(self, name: str) -> dict[int, Kept]:
        """Returns what the store has of buckets that this server should not hold, or is only being given."""
        view, kept = self._keeper.view(name), {}
        if view is None:
            return {}
        entries: dict[int, Collection[Entry]] = {}
        found = self._found(name, view)
        for bucket in found.holding.buckets if found is not None else ():
            assert found is not None
            if not found.is_partial(view.layout, bucket):
                entries[bucket] = entries_that_count(found, view.layout, [bucket]).values()
        for bucket, held in self._replicating.core.copies(name).items():
            if not held.complete and not held.stored:
                written = [shard.entry for shard in held.shards.values() if shard.entry is not None]
                if len(written) == len(held.shards) and all(entry.sequence for entry in written):
                    entries[bucket] = written
        for bucket, there in entries.items():
            record = view.buckets[bucket]
            versions = [entry.version for entry in there]
            if versions and self._node not in (record.primary, *record.in_sync):
                places, pushes = [version[:2] for version in versions], sum(version[2] for version in versions)
                kept[bucket] = Kept(record.epoch, True, len(versions), min(places), max(places), pushes)
        return kept

    def let_go(self, instruction: LetGo) -> None:
        """A bucket is held no longer."""
        name, bucket = instruction.job, instruction.bucket
        self._keeper.memory.copies.pop((name, bucket), None)
        self._loaded.pop((name, bucket), None)
        job, view = self._core.jobs.get(name), self._keeper.view(name)
        if job is None:
            return
        if self._storing is not None and view is not None:
            self._storing.holdings.let_go(stored_identity(name, view), bucket, instruction.spared)
        self._carry_out(self._core.forget_left(job))

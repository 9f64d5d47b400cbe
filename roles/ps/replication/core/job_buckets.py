"""What this server is for each bucket of one job: its primary, one of its copies, or nothing (pure).

Records are taken in as they come, from the configuration service or from our own changes of them; an older one than is
known is ignored. What a bucket becomes follows from its record and from what is in memory here:

    record says       in memory             becomes
    primary           served                served, with the members of the record
    primary           a copy                taken over (takeover.py), then served
    primary, a copy   nothing, just begun   made as the job began
    primary, a copy   nothing               lost: another copy takes over, or all wait for each other's stores
    primary, alone    nothing               lost: read back from the store, or the job is given up here
    a copy            served, handed over   a copy
    a learner         a copy                filled by the primary
    nothing           anything              let go; on disk it stays until as many hold it as should
A single copy is a group of one: the same rules hold for it, it waits for nobody, and it costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adamctl.config.records import BucketRecord
from adamctl.roles.ps.core.instructions import Build, Holds, LetGo, Load, Notice
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.replication.core.bucket_group import ReplicaGroup
from adamctl.roles.ps.replication.core.held_bucket import HeldCopy, copy_of_contents, copy_of_shards, spare_records
from adamctl.roles.ps.replication.core.outbox import Outbox
from adamctl.roles.ps.replication.core.replica_link import Links
from adamctl.roles.ps.replication.core.takeover import Takeover
from adamctl.wire.constants import ErrorCode

FIRST_EPOCH = 1


@dataclass(frozen=True, slots=True)
class VersionedRecord:
    """A bucket's record, and the revision at which it was written."""

    record: BucketRecord
    revision: int

    @property
    def members(self) -> tuple[str, ...]:
        """All in sync, the primary first."""
        others = tuple(node for node in self.record.in_sync if node != self.record.primary)
        return (self.record.primary, *others)


class JobReplicas:
    """One job's buckets on this server.

    Attributes:
        known: bucket -> its record.
        groups: buckets that are served and may have other copies.
        copies: buckets that are held for their primary, or are being taken over.
        takeovers: buckets that are being taken over.
        building, loading: buckets that the shell is making, or is looking for in the store.
        lost: buckets that we should hold and do not.
        links: what is sent to the other members.
        abandoned: buckets that were damaged here, until another server is their primary.
        taken_up: buckets that have been taken over and not yet logged.
        heard_s: server -> when it was heard of as a primary last.
    """

    def __init__(self, outbox: Outbox, job: Job, view: JobView) -> None:
        self.outbox, self.job = outbox, job
        self.born = view.revision
        self.view = view
        self.known: dict[int, VersionedRecord] = {}
        self.groups: dict[int, ReplicaGroup] = {}
        self.copies: dict[int, HeldCopy] = {}
        self.takeovers: dict[int, Takeover] = {}
        self.building: set[int] = set()
        self.loading: set[int] = set()
        self.lost: set[int] = set()
        self.links = Links(outbox, job.name, view.revision)
        self.heard_s: dict[str, float] = {}
        self.taken_up: list[int] = []
        self.abandoned: set[int] = set()
        self._lost_since_s: dict[int, float] = {}

    @property
    def durable(self) -> bool:
        return self.view.record.acks == "durable"

    @property
    def single(self) -> bool:
        """Whether the job wants one copy of each bucket."""
        return self.view.record.replication == 1

    def is_alone(self, known: VersionedRecord) -> bool:
        """Returns whether no other server can have a copy of a bucket that counts."""
        return known.members == (self.outbox.node,)

    # --- records ----------------------------------------------------------------------------------------------------

    def follow(self, view: JobView, now: float) -> None:
        """Takes in all records of the job."""
        self.view = view
        to_build: list[int] = []
        for bucket, record in view.buckets.items():
            to_build += self.take(bucket, record, view.bucket_revisions[bucket], now)
        if to_build:
            self.outbox.emit(Build(self.job.name, to_build))

    def take(self, bucket: int, record: BucketRecord, revision: int, now: float) -> list[int]:
        """Takes in one record; returns the bucket if it is to be made."""
        before = self.known.get(bucket)
        if before is not None and before.revision >= revision:
            return []
        self.known[bucket] = known = VersionedRecord(record, revision)
        self.job.epochs[bucket] = max(record.epoch, self.job.epochs.get(bucket, 0))
        node = self.outbox.node
        build = False
        if record.primary != node:
            self.abandoned.discard(bucket)
        if bucket in self.abandoned:
            pass
        elif record.primary == node:
            build = self._lead(bucket, known, now)
        elif node in record.in_sync:
            build = self._second(bucket, known)
        elif node in record.learners:
            self._learn(bucket)
        else:
            restored = before is not None and record.restored_since(before.record.epoch)
            self.let_go(bucket, spare=restored or len(known.members) < self.view.record.replication)
        self.flag(bucket)
        return [bucket] if build else []

    def _lead(self, bucket: int, known: VersionedRecord, now: float) -> bool:
        """We are the primary. Returns whether the bucket is to be made."""
        self.lost.discard(bucket)
        if bucket in self.job.buckets:
            self.job.buckets[bucket].epoch = known.record.epoch
            self._regroup(bucket)
        elif bucket in self.copies:
            copy = self.copies[bucket]
            if not copy.stored and not copy.whole:  # an operator goes on with what is on disk of a copy being filled
                self.let_go(bucket, spare=True)
                self.lost.add(bucket)
            elif copy.stored and not self._ours(known):
                self.lost.add(bucket)
            else:
                self._take_over(bucket, known, now)
        elif bucket in self.building:
            self.job.begin(bucket, known.record.epoch)
        elif self._first(known):
            self.building.add(bucket)
            self.job.begin(bucket, known.record.epoch)
            return True
        else:
            self.lost.add(bucket)
        return False

    def _second(self, bucket: int, known: VersionedRecord) -> bool:
        """We hold a copy that counts. Returns whether it is to be made."""
        self.takeovers.pop(bucket, None)
        self.lost.discard(bucket)
        self.job.building.pop(bucket, None)
        if bucket in self.job.buckets:
            self._step_down(bucket, keep=True)
        if bucket in self.copies:
            self.copies[bucket].complete = True
        elif bucket in self.building:
            pass
        elif self._first(known):
            self.building.add(bucket)
            return True
        else:
            self.lost.add(bucket)
        return False

    def _first(self, known: VersionedRecord) -> bool:
        """Says whether a bucket is as its job began, and was placed on this very process."""
        return known.record.epoch == FIRST_EPOCH and known.revision > self.outbox.registered_revision

    def _learn(self, bucket: int) -> None:
        """Whatever we hold of it counts for nothing before the primary says so."""
        held = self.copies.get(bucket)
        if held is None or bucket in self.job.buckets or bucket in self.takeovers:
            self.let_go(bucket, spare=True)
        else:
            held.complete = False  # it stays on disk until the primary fills it again

    def let_go(self, bucket: int, spare: bool = False) -> None:
        """Nothing of a bucket is held in memory here any more, nor on disk unless it is spared there."""
        spared = spare_records(self.job, bucket, self.copies.get(bucket)) if spare else {}
        held = bucket in self.copies or bucket in self.job.buckets
        self.lost.discard(bucket)
        self.building.discard(bucket)
        self.loading.discard(bucket)
        self.takeovers.pop(bucket, None)
        self._step_down(bucket, keep=False)
        self.forget_copy(bucket)
        self.flag(bucket)
        if held:
            self.outbox.emit(LetGo(self.job.name, bucket, spared))

    def forget_copy(self, bucket: int) -> None:
        """Drops what is held of a bucket for its primary."""
        copy = self.copies.pop(bucket, None)
        if copy is not None:
            self.job.left += [shard.entry for shard in copy.shards.values() if shard.entry is not None]
            self.outbox.emit(*self.outbox.core.forget_left(self.job))

    def _step_down(self, bucket: int, keep: bool) -> None:
        """Serves a bucket no longer. `keep`: as it is handed over to another member, it stays here as a copy."""
        group = self.groups.pop(bucket, None)
        if group is not None:
            self.links.remove_group(group)
            idle, shards = group.idle, group.drop(self.outbox.over)
            if keep and idle:
                described = self.job.layout.buckets[bucket]
                copy = copy_of_shards(self.job, self.born, described, group.epoch, shards)
                self.copies[bucket] = copy
                for shard in shards:
                    shard.entry = None  # it is the copy's now
                self.outbox.emit(Holds(self.job.name, bucket, group.epoch, False))
        self.job.drop(bucket)
        self.outbox.emit(*self.outbox.core.forget_left(self.job))

    # --- what is made, found and taken over -------------------------------------------------------------------------

    def built(self, bucket: int, contents: Sequence[ShardContent]) -> None:
        """A bucket has been made as the job began."""
        if bucket not in self.building:
            return
        self.building.discard(bucket)
        known = self.known[bucket]
        if known.record.primary == self.outbox.node:
            self._serve(bucket, contents, None)
            return
        described = self.job.layout.buckets[bucket]
        self.copies[bucket] = copy_of_contents(self.job, self.born, described, FIRST_EPOCH, contents)
        self.outbox.emit(Holds(self.job.name, bucket, known.record.epoch, False))

    def search(self, now: float) -> None:
        """Has the shell look for lost buckets in the store, or make those that nobody has ever served.

        At once if no process that the record means lives any more; else if no other copy has taken the bucket over for
        long: its primary may be waiting for what is in our store.
        """
        sought: dict[bool, list[int]] = {}
        for bucket in self.lost:
            if bucket in self.loading or bucket in self.copies:
                continue
            known = self.known[bucket]
            since_s = self._lost_since_s.setdefault(bucket, now)
            alone = all(self.outbox.registered_after(one, known.revision) for one in known.members) or self._ours(known)
            if alone or now - since_s >= self.outbox.config.lease_s:
                sought.setdefault(self.view.never_served(*known.members), []).append(bucket)
        for bucket in [bucket for bucket in self._lost_since_s if bucket not in self.lost]:
            del self._lost_since_s[bucket]
        for initial, buckets in sought.items():
            self.loading.update(buckets)
            self.outbox.emit(Load(self.job.name, buckets, initial))

    def _ours(self, known: VersionedRecord) -> bool:
        """Says whether this very process was made a bucket's primary, by itself or by an operator."""
        return known.record.primary == self.outbox.node and known.revision > self.outbox.registered_revision

    def loaded(self, bucket: int, contents: Sequence[ShardContent] | None, now: float) -> None:
        """What the store was found to hold of a bucket; it counts if nobody has it in memory."""
        if bucket not in self.loading:
            return
        self.loading.discard(bucket)
        described = self.job.layout.buckets[bucket]
        epoch = max((content.epoch for content in contents or ()), default=0)
        copy = copy_of_contents(self.job, self.born, described, epoch, contents or ())
        copy.stored = True
        self.copies[bucket] = copy
        if not copy.whole and self.is_alone(self.known[bucket]):
            text = f"{self.outbox.node} was restarted and no longer has bucket {bucket} of job {self.job.name!r}"
            self._give_up(bucket, text)
            return
        self.outbox.emit(Holds(self.job.name, bucket, epoch, False))
        if self._ours(self.known[bucket]):
            self.lost.discard(bucket)
            self._take_over(bucket, self.known[bucket], now)
            self.flag(bucket)

    def _take_over(self, bucket: int, known: VersionedRecord, now: float) -> None:
        others = {
            node: 0 if self.outbox.registered_after(node, known.revision) else self.outbox.incarnation_of(node)
            for node in known.members[1:]
        }
        copy = self.copies[bucket]
        self.takeovers[bucket] = Takeover(self.outbox, self.born, copy, known.record.epoch, others, self.durable)
        self.takeovers[bucket].advance(now)
        self.finish_takeover(bucket)

    def finish_takeover(self, bucket: int) -> None:
        """Begins to serve a bucket that has been made whole."""
        takeover = self.takeovers.get(bucket)
        if takeover is None or not takeover.done:
            if takeover is not None and takeover.patient and takeover.empty:
                text = f"no server has bucket {bucket} of job {self.job.name!r} any more, in memory or in its store"
                self._give_up(bucket, text)
            return
        del self.takeovers[bucket]
        copy = self.copies.pop(bucket)
        self.job.begin(bucket, takeover.epoch)
        entries = {index: shard.entry for index, shard in copy.shards.items()}
        self._serve(bucket, copy.contents(), takeover)
        for index, entry in entries.items():
            if entry is not None:
                self.job.shards[index].entry = entry
                entry.owner = self.job.shards[index]
        self.taken_up.append(bucket)
        self.flag(bucket)

    def _give_up(self, bucket: int, text: str) -> None:
        """Nothing of the job can be served here any more, as a bucket is gone."""
        if self.job.failed is None:
            self.job.failed = (ErrorCode.INTERNAL, f"{text}; resume the run from its last checkpoint")
            self.outbox.emit(Notice(self.job.name, bucket, text, True))

    def _serve(self, bucket: int, contents: Sequence[ShardContent], takeover: Takeover | None) -> None:
        known = self.known[bucket]
        if bucket not in self.job.building:
            self.job.begin(bucket, known.record.epoch)
        self.job.install(self.job.layout.buckets[bucket], contents, self.outbox.core.threads)
        self.job.buckets[bucket].epoch = known.record.epoch
        self._regroup(bucket, takeover)
        self.outbox.emit(Holds(self.job.name, bucket, known.record.epoch, True))
        self.flag(bucket)

    def has_others(self, bucket: int) -> bool:
        """Says whether a bucket that is served has other copies in sync."""
        group = self.groups.get(bucket)
        return group is not None and any(not member.lost for member in group.in_sync())

    def abandon(self, bucket: int) -> None:
        """What is served of a bucket is damaged; another copy is to be its primary."""
        self.abandoned.add(bucket)
        spared = spare_records(self.job, bucket, self.copies.get(bucket))
        self._step_down(bucket, keep=False)
        self.outbox.emit(LetGo(self.job.name, bucket, spared))
        self.flag(bucket)

    # --- other copies of what is served -----------------------------------------------------------------------------

    def _regroup(self, bucket: int, takeover: Takeover | None = None) -> None:
        """Makes the members of a served bucket those of its record."""
        known = self.known[bucket]
        record, settings = known.record, self.view.record
        group = self.groups.get(bucket)
        if group is None:
            if self.single and not record.learners and self.is_alone(known):
                return  # a single copy costs nothing
            minimum = settings.min_in_sync if settings.replication > 1 else 1
            group = ReplicaGroup(self.job, self.born, bucket, settings.acks != "applied", minimum)
            self.groups[bucket] = group
            self.outbox.core.wait_for_copies()
        present = set(group.members)
        nodes = (*known.members[1:], *record.learners)
        incarnations = {
            node: self.outbox.incarnation_of(node)
            for node in nodes
            if not self.outbox.registered_after(node, known.revision)
        }
        for member in group.follow(record, incarnations):
            self.links.remove(group, member)
            present.discard(member.node)  # it may be there again, as a learner
        for node, member in group.members.items():
            if node not in present and not member.lost:
                known_there = takeover.known(node) if takeover is not None and node in takeover.others else None
                self.links.to(member, self.durable).add(group, member, known_there)
        group.recount(self.outbox.over)

    # --- what clients are told --------------------------------------------------------------------------------------

    def flag(self, bucket: int) -> None:
        """Tells the core of pushes and pulls what it may do with a bucket."""
        job, group = self.job, self.groups.get(bucket)
        job.refusing.pop(bucket, None)
        job.short.pop(bucket, None)
        if bucket in self.takeovers:
            job.refusing[bucket] = f"bucket {bucket} is being taken over"
        elif bucket in self.abandoned:
            job.refusing[bucket] = f"bucket {bucket} was damaged here; another copy takes over"
        elif bucket in self.lost and self.known[bucket].record.primary == self.outbox.node:
            alone = self.is_alone(self.known[bucket])
            waits = "is being resumed from the store" if alone else "waits for servers that hold copies of it"
            job.refusing[bucket] = f"bucket {bucket} {waits}"
        elif group is not None and group.closing:
            job.refusing[bucket] = f"bucket {bucket} is being handed over to {group.closing}"
        elif group is not None and group.short:
            members = len(self.known[bucket].members)
            job.short[bucket] = f"bucket {bucket} has {members} copies in sync; pushes need {group.min_in_sync}"
        job.taking = set(self.takeovers) | {bucket for bucket in self.lost if bucket in job.refusing}
        job.leased = any(group.leased for group in self.groups.values())

    def close(self) -> None:
        """The job is over."""
        for bucket in (*self.groups, *self.copies):
            self.let_go(bucket)

"""A bucket that this server serves, and the members that hold copies of it: what they have prepared, who waits (pure).

A push that is acknowledged as `replicated` waits until each shard that it changed is prepared, in the state with it or
a later one, by every counted member: those in sync, and learners that have everything but what is on its way to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from adamctl.config.records import BucketRecord
from adamctl.roles.ps.core.exactly_once import NO_CLIENTS
from adamctl.roles.ps.core.flush import Waiter
from adamctl.roles.ps.core.instructions import Image
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy, describe, lengths_of


class Part(Enum):
    """What a member is."""

    IN_SYNC = auto()
    LEARNER = auto()
    COUNTED = auto()  # a learner that is waited for like a member; it may be made one


class Member:
    """Another server's copy of a bucket.

    Attributes:
        incarnation: of the process that holds it; another one holds nothing.
        begun: a learner that has confirmed its empty copy, so that it can be filled.
        missing: shards that a learner has not got yet.
        targets: shard -> what a counted learner still has to prepare of what was there when it began to count.
        synced: a learner's copy is in its store, if it has one: else a crash of all would find nothing there.
        lost: why it holds nothing or does not answer; it is to be removed.
    """

    __slots__ = ("beginning", "begun", "incarnation", "lost", "missing", "node", "part", "synced", "syncing", "targets")

    def __init__(self, node: str, incarnation: int, part: Part) -> None:
        self.node, self.incarnation, self.part = node, incarnation, part
        self.beginning = self.syncing = self.synced = False
        self.begun = part is Part.IN_SYNC
        self.missing: set[ShardReplica] = set()
        self.targets: dict[ShardReplica, int] = {}
        self.lost = ""

    @property
    def ready(self) -> bool:
        """Says whether a learner can be made a member."""
        return self.full and self.synced and not self.lost

    @property
    def full(self) -> bool:
        """Says whether a learner has everything that was acknowledged before it counted."""
        return self.part is Part.COUNTED and not self.targets


class ShardReplica:
    """One shard of a bucket that has other copies.

    Attributes:
        prepared: member -> the highest counter that it is known to have.
        committed: what all counted members had; it never falls.
        waiting: (counter that must be committed, for whom), ascending.
        described: its state as it was described last, valid for that counter, epoch and `since`.
        bare: the highest counter at which nothing had been pushed to it yet, -1 if there is none.
    """

    __slots__ = ("bare", "committed", "described", "group", "prepared", "shard", "waiting")

    def __init__(self, group: ReplicaGroup, shard: Shard) -> None:
        self.group, self.shard = group, shard
        self.prepared: dict[str, int] = {}
        self.committed = shard.counter
        self.bare = -1 if shard.pushes else shard.counter
        self.waiting: list[tuple[int, Waiter]] = []
        self.described: tuple[ShardCopy, bytes] | None = None

    @property
    def changing(self) -> bool:
        """Says whether a batch is writing over its state."""
        return self.shard.batch is not None and (self.shard.batch.in_place or not self.shard.batch.copy_state)

    @property
    def founded(self) -> bool:
        """Says whether each counted member has on disk what the first push brought.

        See `HeldShard.initial_values_volatile`.
        """
        return all(self.prepared.get(node, -1) > self.bare for node in self.group.counted)

    def wait(self, waiter: Waiter, counter: int) -> None:
        """Makes `waiter` wait until a counter is committed."""
        if counter > self.committed and self.group.counted and not self.group.gone:
            waiter.missing += 1
            self.waiting.append((counter, waiter))

    def release(self, over: list[Waiter], counter: int | None = None) -> None:
        """Ends the wait for counters up to this one, or for all; those that wait for nothing else go into `over`."""
        kept: list[tuple[int, Waiter]] = []
        for needed, waiter in self.waiting:
            if counter is not None and needed > counter:
                kept.append((needed, waiter))
                continue
            waiter.missing -= 1
            if not waiter.missing:
                over.append(waiter)
        self.waiting = kept

    def record(self, since: int = -1) -> tuple[CopyRecord, Image]:
        """Returns its present state to be sent, and what holds it until then.

        `since`: a counter that the receiver has, of whose clients it needs what has changed; -1: it needs everything.
        """
        shard = self.shard
        values, state = shard.values, shard.state
        copy, described = self.describe(since)
        values.readers += 1
        state.readers += 1
        image = Image(None, shard, copy.epoch, copy.counter, copy.pushes, copy.memory, values, state)
        return CopyRecord(copy, (values.array, *state.arrays), described), image

    def describe(self, since: int = -1) -> tuple[ShardCopy, bytes]:
        """Returns what is sent of its present state besides its arrays, and the same as it is written."""
        shard, group = self.shard, self.group
        if self.described is not None:
            known, _ = self.described
            if (known.counter, known.epoch, known.since) == (shard.counter, group.epoch, since):
                return self.described
        if not shard.pushes:
            self.bare = shard.counter
        change = shard.memory.change(since) if since >= 0 else None
        copy = ShardCopy(
            group.job.name, group.born, shard.index, group.epoch, shard.counter, shard.pushes, shard.size,
            lengths_of((shard.values.array, *shard.state.arrays)),
            shard.memory.record() if change is None else NO_CLIENTS,
            self.committed, since, change,
        )  # fmt: skip
        self.described = copy, describe(copy)
        return self.described


class ReplicaGroup:
    """One bucket that this server serves.

    Attributes:
        members: the other copies by server.
        counted: servers whose copies an acknowledgement waits for.
        awaits: pushes wait for copies at all (`acks` is not `applied`).
        short: there are fewer copies in sync than acknowledgements need.
        closing: the member that the bucket is to be handed over to; nothing is taken in meanwhile.
        gone: it is served here no longer.
    """

    def __init__(self, job: Job, born: int, bucket: int, awaits: bool, min_in_sync: int) -> None:
        self.job, self.born, self.bucket, self.awaits, self.min_in_sync = job, born, bucket, awaits, min_in_sync
        self.epoch = job.buckets[bucket].epoch
        self.members: dict[str, Member] = {}
        self.counted: tuple[str, ...] = ()
        self.short = self.gone = False
        self.closing = ""
        described = job.layout.buckets[bucket]
        self.shards: dict[int, ShardReplica] = {}
        for index in range(described.shard_start, described.shard_stop):
            replica = ShardReplica(self, job.shards[index])
            job.shards[index].replica = replica
            self.shards[index] = replica

    # --- members ----------------------------------------------------------------------------------------------------

    def follow(self, record: BucketRecord, incarnations: dict[str, int]) -> list[Member]:
        """Takes the bucket's record in; returns members that are no longer what they were, or not there any more.

        Args:
            incarnations: of the processes that the record means; who is not in it is gone.
        """
        self.epoch = record.epoch
        left: list[Member] = []
        wanted = dict.fromkeys(record.learners, Part.LEARNER)
        wanted |= dict.fromkeys(record.in_sync, Part.IN_SYNC)
        wanted.pop(record.primary, None)
        for node, member in tuple(self.members.items()):
            part = wanted.get(node)
            if part is None or (part is Part.LEARNER and member.part is Part.IN_SYNC):
                left.append(self.members.pop(node))
                for replica in self.shards.values():
                    replica.prepared.pop(node, None)
            elif part is Part.IN_SYNC:
                member.part = Part.IN_SYNC
        for node, part in wanted.items():
            if node not in self.members:
                member = self.members[node] = Member(node, incarnations.get(node, 0), part)
                if node not in incarnations:
                    member.lost = "it is gone"
        self.short = self.awaits and len({*record.in_sync, record.primary}) < self.min_in_sync
        return left

    def recount(self, over: list[Waiter]) -> None:
        """Counts anew who is waited for."""
        self.counted = tuple(node for node, member in self.members.items() if member.part is not Part.LEARNER)
        for replica in self.shards.values():
            self._commit(replica, over)

    def begun(self, member: Member) -> None:
        """A learner has begun an empty copy: it lacks every shard."""
        member.begun = True
        member.missing = set(self.shards.values())

    # --- what they have prepared ------------------------------------------------------------------------------------

    def prepared(self, member: Member, replica: ShardReplica, counter: int, over: list[Waiter]) -> None:
        """A member has a shard in the state of a counter, or later; adds those whose wait is over to `over`."""
        if counter > replica.prepared.get(member.node, -1):
            replica.prepared[member.node] = counter
        if member.part is Part.LEARNER:
            member.missing.discard(replica)
            if not member.missing:
                self._count_in(member)
            return
        if member.targets and member.targets.get(replica, counter + 1) <= counter:
            del member.targets[replica]
        self._commit(replica, over)

    def _count_in(self, member: Member) -> None:
        """Waits for a learner that has had every shard once, as for a member.

        What was acknowledged before it counted may have to reach it yet: it is a member only then.
        """
        member.part = Part.COUNTED
        for replica in self.shards.values():
            if replica.prepared[member.node] < replica.shard.counter:
                member.targets[replica] = replica.shard.counter
        self.counted = (*self.counted, member.node)

    def _commit(self, replica: ShardReplica, over: list[Waiter]) -> None:
        if not self.counted:
            replica.committed = replica.shard.counter
            replica.release(over)
            return
        prepared = replica.prepared
        counter = min([prepared.get(node, -1) for node in self.counted])
        if counter > replica.committed:
            replica.committed = counter
            if replica.waiting:
                replica.release(over, counter)

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Says whether nothing is being changed."""
        return all(replica.shard.batch is None and not replica.shard.queue for replica in self.shards.values())

    @property
    def quiet(self) -> bool:
        """Says whether besides every counted member has everything."""
        return self.idle and all(
            replica.prepared.get(node, -1) >= replica.shard.counter
            for node in self.counted
            for replica in self.shards.values()
        )

    def drop(self, over: list[Waiter]) -> None:
        """The bucket is served here no longer: nobody waits for copies of it any more."""
        self.gone = True
        for replica in self.shards.values():
            replica.release(over)
            replica.shard.replica = None

    def can_spare(self, member: Member) -> bool:
        """Says whether a member that does not answer may be given up for that alone.

        Not one of those without which nothing is acknowledged: nothing would be gained, and should this server die,
        they have everything. Whoever is really gone the configuration service gives up.
        """
        staying = 1 + sum(not other.lost for other in self.in_sync() if other is not member)
        return member.part is not Part.IN_SYNC or staying >= self.min_in_sync

    def in_sync(self) -> Iterable[Member]:
        return (member for member in self.members.values() if member.part is Part.IN_SYNC)

    @property
    def leased(self) -> bool:
        """Says whether another may take the bucket over: a member, or a learner that may be one before we know it."""
        return any(member.part is not Part.LEARNER for member in self.members.values())

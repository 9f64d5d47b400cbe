"""A bucket that this server serves, and its members: which states they have prepared, which pushes wait (pure).

With `replicated` acknowledgements, a push waits until every counted member has prepared each shard it changed, in a
state that contains the push. Counted are in-sync members, and learners that lack only what is being sent to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

from adamctl.config.records import BucketRecord
from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.exactly_once import NO_CLIENTS
from adamctl.roles.ps.core.flush import Waiter
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.shard import Image, Shard
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy, describe, lengths_of


class Part(Enum):
    """A member's role."""

    IN_SYNC = auto()
    LEARNER = auto()
    COUNTED = auto()  # a learner that pushes wait for, as for a member; it may become one


class Member:
    """Another server's copy of a bucket.

    Attributes:
        incarnation: of the process that holds the copy; a newer process holds nothing.
        begun: the learner has confirmed its empty copy, so that it can be filled.
        missing: shards that a learner does not have yet.
        targets: shard -> counter that a counted learner must still prepare of what existed when it started to count.
        synced: a learner's copy is in its store, if it has a store; otherwise nothing would be left if all crashed.
        lost: why it holds nothing or does not answer, so that it will be removed; empty if all is well.
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
        """Whether a learner can become a member."""
        return self.full and self.synced and not self.lost

    @property
    def full(self) -> bool:
        """Whether a learner has everything that was acknowledged before it counted."""
        return self.part is Part.COUNTED and not self.targets


class ShardReplica:
    """One shard of a bucket that has other copies.

    Attributes:
        prepared: member -> the highest counter it is known to have.
        committed: the highest counter that all counted members had; never decreases.
        waiting: (counter that must be committed, waiter), ascending.
        described: the last description of its state, valid for that counter, epoch and `since`.
        bare: the highest counter before the first push, -1 if none.
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
        """Whether a batch is overwriting its state."""
        return self.shard.batch is not None and (self.shard.batch.in_place or not self.shard.batch.copy_state)

    @property
    def founded(self) -> bool:
        """Whether each counted member has the first push's initial values on disk.

        See `HeldShard.initial_values_volatile`.
        """
        return all(self.prepared.get(node, -1) > self.bare for node in self.group.counted)

    def wait(self, waiter: Waiter, counter: int) -> None:
        """Makes `waiter` wait until a counter is committed."""
        if counter > self.committed and self.group.counted and not self.group.gone:
            waiter.missing += 1
            self.waiting.append((counter, waiter))

    def release(self, over: list[Waiter], counter: int | None = None) -> None:
        """Ends waits for counters up to `counter`, or all; adds waiters that wait for nothing else to `over`."""
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
        """Returns its current state to be sent, and the image that holds it until then.

        `since`: a counter that the receiver has, so that it needs only the changes to the clients' memory; -1: it needs
        the whole memory.
        """
        shard = self.shard
        values, state = shard.values, shard.state
        copy, described = self.describe(since)
        values.readers += 1
        state.readers += 1
        image = Image(shard, copy.epoch, copy.counter, copy.pushes, copy.memory, values, state)
        arrays = _sent((values.array, *state.arrays), copy.lengths)
        return CopyRecord(copy, arrays, described), image

    def describe(self, since: int = -1) -> tuple[ShardCopy, bytes]:
        """Returns the description of its current state, and the same encoded."""
        shard, group = self.shard, self.group
        if self.described is not None:
            known, _ = self.described
            if (known.counter, known.epoch, known.since) == (shard.counter, group.epoch, since):
                return self.described
        if not shard.pushes:
            self.bare = shard.counter
        change = shard.memory.change(since) if since >= 0 else None
        lengths = lengths_of((shard.values.array, *shard.state.arrays))
        if shard.vectors is not None and change is not None:
            lengths = shard.vectors.lengths_since(since, lengths)
        copy = ShardCopy(
            group.job.name, group.born, shard.index, group.epoch, shard.counter, shard.pushes, shard.size, lengths,
            shard.memory.record() if change is None else NO_CLIENTS,
            self.committed, since, change,
        )  # fmt: skip
        self.described = copy, describe(copy)
        return self.described


def _sent(arrays: Sequence[Array], lengths: Sequence[int]) -> tuple[Array, ...]:
    """Returns what is sent of each array: nothing of one that has not changed."""
    return tuple(array if length else array[:0] for array, length in zip(arrays, lengths, strict=True))


class ReplicaGroup:
    """One bucket that this server serves.

    Attributes:
        members: the other copies by server.
        counted: servers whose copies an acknowledgement waits for.
        awaits: whether pushes wait for copies (`acks` is not `applied`).
        short: fewer copies are in sync than acknowledgements need.
        closing: the member that the bucket is being handed over to, during which pushes are refused; else empty.
        gone: the bucket is no longer served here.
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
        """Takes in the bucket's record; returns members that were removed or are no longer in sync.

        Args:
            incarnations: of the processes that the record refers to; a missing server is gone.
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
        """Recomputes which members are counted."""
        self.counted = tuple(node for node, member in self.members.items() if member.part is not Part.LEARNER)
        for replica in self.shards.values():
            self._commit(replica, over)

    def begun(self, member: Member) -> None:
        """Notes that a learner has an empty copy now: it lacks every shard."""
        member.begun = True
        member.missing = set(self.shards.values())

    # --- what they have prepared ------------------------------------------------------------------------------------

    def prepared(self, member: Member, replica: ShardReplica, counter: int, over: list[Waiter]) -> None:
        """Notes that a member has a shard at `counter` or later; adds waiters that are done to `over`."""
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
        """Counts a learner that has received every shard once, so that pushes wait for it.

        What was acknowledged before may still have to reach it; only then can it become a member.
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
        """Whether no shard is being changed or has queued updates."""
        return all(replica.shard.batch is None and not replica.shard.queue for replica in self.shards.values())

    @property
    def quiet(self) -> bool:
        """Whether it is idle and every counted member has everything."""
        return self.idle and all(
            replica.prepared.get(node, -1) >= replica.shard.counter
            for node in self.counted
            for replica in self.shards.values()
        )

    def drop(self, over: list[Waiter]) -> list[Shard]:
        """Ends all waits for copies: the bucket is no longer served here. Returns its shards."""
        self.gone = True
        for replica in self.shards.values():
            replica.release(over)
            replica.shard.replica = None
        shards = [replica.shard for replica in self.shards.values()]
        self.shards = {}  # each has this group; their arrays would wait for the garbage collector
        return shards

    def can_spare(self, member: Member) -> bool:
        """Returns whether a member may be removed just because it does not answer.

        Not if acknowledgements need it: removing it would gain nothing, and it has everything if this server dies. The
        configuration service notices members that are really gone.
        """
        staying = 1 + sum(not other.lost for other in self.in_sync() if other is not member)
        return member.part is not Part.IN_SYNC or staying >= self.min_in_sync

    def in_sync(self) -> Iterable[Member]:
        return (member for member in self.members.values() if member.part is Part.IN_SYNC)

    @property
    def leased(self) -> bool:
        """Whether another server may take over: a member, or a learner that may have become one without us knowing."""
        return any(member.part is not Part.LEARNER for member in self.members.values())

"""Buckets that this server holds as a secondary or a learner: what is taken of their primary, what is told (pure).

A copy takes states of shards of exactly the epoch that this server knows the bucket to be at, so nothing of a primary
that was deposed (fence), and nothing of a newer one before this server knows what has become of its own part in the
bucket meanwhile. Each state replaces the one before if its version is higher: messages may come twice and in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from adamctl.kernels.operation import Array
from adamctl.model.layout import Bucket
from adamctl.roles.ps.core.exactly_once import NO_CLIENTS, ClientMemory
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.instructions import Image
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.shard import Shard, State, Values
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy, lengths_of

NOTHING = (-1, -1)
"""The version of a shard that has not come yet."""


class HeldValues(Values):
    """Values of a copy; they are never written to, so nothing is to be done when nobody reads them any more."""

    __slots__ = ()

    def release(self) -> None:
        self.readers -= 1


class HeldShard:
    """One shard of a copy.

    Attributes:
        copy, values, state: its newest state; None before it has come. Replaced as a whole, never written to.
        memory: of its clients, which is not in `copy`.
        entry: its place in the store's log, None without a store.
        size_bytes: of its state in memory.
        given: its initial values come with its first push.
    """

    __slots__ = ("copy", "entry", "given", "index", "memory", "size_bytes", "state", "values")

    def __init__(self, index: int, size_bytes: int, given: bool = False) -> None:
        self.index, self.size_bytes, self.given = index, size_bytes, given
        self.copy: ShardCopy | None = None
        self.memory = ClientMemory()
        self.values: Values | None = None
        self.state: State | None = None
        self.entry: Entry | None = None

    @property
    def version(self) -> tuple[int, int]:
        return NOTHING if self.copy is None else (self.copy.epoch, self.copy.counter)

    @property
    def initial_values_volatile(self) -> bool:
        """Says whether initial values that were given are in memory alone: nobody is told yet that they are here.

        The primary may tell a client that they will be found, whatever is lost, and be gone for good the next moment.
        """
        if not self.given or self.entry is None or self.copy is None:
            return False
        return bool(self.copy.pushes) and not self.entry.version[2]

    @property
    def arrays(self) -> tuple[Array, ...]:
        return () if self.values is None or self.state is None else (self.values.array, *self.state.arrays)

    def follows(self, copy: ShardCopy) -> bool:
        """Says whether a newer state can be taken in: it is whole, or what it has changed is held."""
        return copy.change is None or (self.copy is not None and self.copy.counter >= copy.since)

    def put(self, record: CopyRecord) -> None:
        """Takes a state in that follows what is held."""
        copy = record.copy
        if copy.change is None:
            self.memory = ClientMemory.restored(copy.memory)
        else:
            self.memory.take(copy.change)
        self.copy = msgspec.structs.replace(copy, memory=NO_CLIENTS, since=-1, change=None)
        self.values, self.state = HeldValues(record.arrays[0], cast(Any, self)), State(list(record.arrays[1:]))
        if self.entry is not None:
            self.entry.owner = self

    def record(self) -> CopyRecord:
        """Returns its state to be sent to somebody who has nothing of it."""
        assert self.copy is not None
        return CopyRecord(msgspec.structs.replace(self.copy, memory=self.memory.record()), self.arrays)

    @property
    def message_bytes(self) -> int:
        """Of its part of a message."""
        return self.size_bytes if self.copy is None else self.record().size_bytes

    def image(self, token: Token) -> Image | None:
        """Holds its state for somebody who reads it, None if nothing has come yet."""
        if self.copy is None or self.values is None or self.state is None:
            return None
        self.values.readers += 1
        self.state.readers += 1
        copy, memory = self.copy, self.memory.record()
        return Image(token, self, copy.epoch, copy.counter, copy.pushes, memory, self.values, self.state)


class HeldCopy:
    """A copy of one bucket.

    Attributes:
        begun: (epoch, number) under which its primary began to fill it; (epoch, 0): it was made here.
        complete: its primary has made it a member, or it was one from the beginning: it counts.
        stored: it is what the store was found to hold: it counts only where nothing else does.
        shards: by index, all of the bucket.
    """

    def __init__(self, job: Job, bucket: Bucket, begun: tuple[int, int], complete: bool) -> None:
        self.job, self.bucket, self.begun, self.complete = job, bucket, begun, complete
        self.stored = False
        arrays = 1 + len(job.rule.state_names)
        self.shards: dict[int, HeldShard] = {}
        for index in range(bucket.shard_start, bucket.shard_stop):
            described = job.layout.shards[index]
            given = job.layout.tensors[described.tensor].distribution == "given"
            self.shards[index] = HeldShard(index, 4 * described.size * arrays, given)

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards.values() if shard.copy is not None)

    @property
    def whole(self) -> bool:
        return all(shard.copy is not None for shard in self.shards.values())

    def fits(self, record: CopyRecord) -> bool:
        """Says whether a record is the state of a shard of this job."""
        index, size = record.copy.shard, record.copy.size
        expected = 1 + len(self.job.rule.state_names)
        if index not in self.shards or size != self.job.layout.shards[index].size or len(record.arrays) != expected:
            return False
        held = self.shards[index]
        return (record.copy.epoch, record.copy.counter) <= held.version or held.follows(record.copy)

    def prepare(self, record: CopyRecord) -> bool:
        """Takes a state in unless what is held is as new; says whether it did."""
        shard = self.shards[record.copy.shard]
        if (record.copy.epoch, record.copy.counter) > shard.version:
            shard.put(record)
            return True
        if shard.copy is not None and record.copy.committed > shard.copy.committed:
            committed = min(record.copy.committed, shard.copy.counter)
            shard.copy = msgspec.structs.replace(shard.copy, committed=committed)
        return False

    def versions(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((shard.index, *shard.version) for shard in self.shards.values() if shard.copy is not None)

    def records(self, indices: Iterable[int]) -> list[CopyRecord]:
        """Returns states to send, of those shards that are held."""
        found = (self.shards.get(index) for index in indices)
        return [held.record() for held in found if held is not None and held.copy is not None]

    def image(self, index: int) -> Image | None:
        """Holds a shard's state while it is sent; None if it is not held."""
        held = self.shards.get(index)
        return held.image(None) if held is not None else None

    def contents(self) -> list[ShardContent]:
        """Returns what a primary begins with; the arrays are its own from now on."""
        return [self._content(shard) for shard in self.shards.values()]

    def _content(self, held: HeldShard) -> ShardContent:
        assert held.copy is not None
        assert held.values is not None and held.state is not None
        values, state = held.values, held.state
        memory = ClientMemory.restored(held.memory.record())
        return ShardContent(
            held.index,
            values.array.copy() if values.readers else writable(values.array),
            self.job.rule.restored_state([_own(array, state.readers > 0) for array in state.arrays]),
            held.copy.counter,
            held.copy.pushes,
            memory,
        )


def writable(array: Array) -> Array:
    """Returns an array that can be written to, the same one if it can."""
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()


def _own(array: Array, read: bool) -> Array:
    """Returns an array of state to write to; one that is a single number seen many times is made anew by the rule."""
    repeats = array.size > 1 and array.strides == (0,)
    return array if repeats else array.copy() if read else writable(array)


def copy_of_contents(job: Job, born: int, bucket: Bucket, epoch: int, contents: Sequence[ShardContent]) -> HeldCopy:
    """Returns a copy, at an epoch, of shards that were made here or found in the store."""
    held = HeldCopy(job, bucket, (epoch, 0), True)
    for content in contents:
        memory = content.memory.record() if content.memory is not None else NO_CLIENTS
        arrays = (content.values, *content.state)
        described = ShardCopy(
            job.name, born, content.index, content.epoch, content.counter, content.pushes, content.values.size,
            lengths_of(arrays), memory, content.counter,
        )  # fmt: skip
        held.shards[content.index].put(CopyRecord(described, arrays))
    return held


def copy_of_shards(job: Job, born: int, bucket: Bucket, epoch: int, shards: Sequence[Shard]) -> HeldCopy:
    """Returns a copy of a bucket that was served here until now; none of its shards is being changed."""
    held = HeldCopy(job, bucket, (epoch, 0), True)
    for shard in shards:
        arrays = (shard.values.array, *shard.state.arrays)
        described = ShardCopy(
            job.name, born, shard.index, epoch, shard.counter, shard.pushes, shard.size, lengths_of(arrays),
            NO_CLIENTS, shard.counter,
        )  # fmt: skip
        one = held.shards[shard.index]
        one.copy, one.values, one.state = described, shard.values, shard.state
        one.memory = ClientMemory.restored(shard.memory.record())
        one.entry = shard.entry
        if one.entry is not None:
            one.entry.owner = one
    return held


def spare_records(job: Job, bucket: int, copy: HeldCopy | None) -> dict[int, Entry]:
    """Has the records of what is held of a bucket, served or as a copy, stay on disk when it is let go.

    Returns shard -> its entry. Those of a copy that was being filled stay only if all are there.
    """
    described = job.layout.buckets[bucket]
    indices = range(described.shard_start, described.shard_stop)
    shards: Mapping[int, Shard | HeldShard] = job.shards
    if copy is not None and bucket not in job.buckets:
        shards = copy.shards
    entries = {index: entry for index in indices if index in shards and (entry := shards[index].entry) is not None}
    whole = len(entries) == len(indices) and all(entry.sequence for entry in entries.values())
    if copy is not None and not copy.complete and not copy.stored and not whole:
        return {}
    for entry in entries.values():
        entry.spared = True
    return entries

"""Buckets that this server holds as a secondary or a learner: which states it accepts and reports (pure).

A copy accepts only states of exactly the epoch at which this server knows the bucket to be. So it takes nothing from a
deposed primary (fencing), and nothing from a newer one before this server knows its own current part in the bucket.
Each state replaces the previous one if its version is higher: messages may be repeated and arrive in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from adamctl.kernels.operation import Array
from adamctl.model.layout import Bucket
from adamctl.roles.ps.core.buffers import State, Values
from adamctl.roles.ps.core.exactly_once import NO_CLIENTS, ClientMemory
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.shard import Image, Shard
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy, lengths_of

NOTHING = (-1, -1)
"""The version of a shard that has not arrived yet."""


class HeldValues(Values):
    """Values of a copy; they are never written to, so nothing happens when the last reader releases them."""

    __slots__ = ()

    def release(self) -> None:
        self.readers -= 1


class HeldShard:
    """One shard of a copy.

    Attributes:
        copy, values, state: its newest state, None before it arrives; arrays are replaced, never written to.
        memory: the clients' memory, which is not kept in `copy`.
        entry: its entry in the store's log, None without a store.
        size_bytes: the state's size in memory.
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
        """Whether given initial values are only in memory, so that having them must not be reported yet.

        Otherwise the primary might promise a client that they will survive any crash, and then be lost itself.
        """
        if not self.given or self.entry is None or self.copy is None:
            return False
        return bool(self.copy.pushes) and not self.entry.version[2]

    @property
    def arrays(self) -> tuple[Array, ...]:
        return () if self.values is None or self.state is None else (self.values.array, *self.state.arrays)

    def follows(self, copy: ShardCopy) -> bool:
        """Returns whether a newer state can be taken in: it is whole, or its changes' base version is held."""
        return copy.change is None or (self.copy is not None and self.copy.counter >= copy.since)

    def put(self, record: CopyRecord) -> None:
        """Takes in a state that follows the held one."""
        copy = record.copy
        if copy.change is None:
            self.memory = ClientMemory.restored(copy.memory)
        else:
            self.memory.take(copy.change)
        values, *state = record.arrays
        if values.size or self.values is None:
            self.values = HeldValues(values, None)  # or a copy that is let go waits for the garbage collector
        if self.state is None or all([array.size for array in state]):  # noqa: C419
            self.state = State(state)
        else:  # what has not changed stays; a reader of the old state may still be reading it
            held = zip(state, self.state.arrays, strict=True)
            self.state = self.state.followed_by([array if array.size else known for array, known in held])
        lengths = copy.lengths if all(copy.lengths) else lengths_of(self.arrays)
        self.copy = msgspec.structs.replace(copy, memory=NO_CLIENTS, since=-1, change=None, lengths=lengths)
        if self.entry is not None:
            self.entry.owner = self

    def record(self) -> CopyRecord:
        """Returns its whole state, for a server that has nothing of it."""
        assert self.copy is not None
        return CopyRecord(msgspec.structs.replace(self.copy, memory=self.memory.record()), self.arrays)

    @property
    def message_bytes(self) -> int:
        """Its size in a message."""
        return self.size_bytes if self.copy is None else self.record().size_bytes

    def image(self) -> Image | None:
        """Holds its state for a reader; None if no state has arrived yet."""
        if self.copy is None or self.values is None or self.state is None:
            return None
        self.values.readers += 1
        self.state.readers += 1
        copy, memory = self.copy, self.memory.record()
        return Image(self, copy.epoch, copy.counter, copy.pushes, memory, self.values, self.state)


class HeldCopy:
    """A copy of one bucket.

    Attributes:
        begun: (epoch, number) with which its primary started to fill it; (epoch, 0) if it was made here.
        complete: it is a full copy: its primary has made it a member, or it was one from the start.
        stored: it was loaded from the store; used only if no copy is in memory anywhere.
        initial: it was not even that, but made as the job began, since nobody had ever pushed to it.
        shards: all of the bucket's shards, by index.
    """

    def __init__(self, job: Job, bucket: Bucket, begun: tuple[int, int], complete: bool) -> None:
        self.job, self.bucket, self.begun, self.complete = job, bucket, begun, complete
        self.stored = self.initial = False
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
        """Returns whether a record fits one of these shards and can be taken in."""
        index, size = record.copy.shard, record.copy.size
        expected = 1 + len(self.job.rule.state_names)
        if index not in self.shards or size != self.job.layout.shards[index].size or len(record.arrays) != expected:
            return False
        held = self.shards[index]
        return (record.copy.epoch, record.copy.counter) <= held.version or held.follows(record.copy)

    def prepare(self, record: CopyRecord) -> bool:
        """Takes in a state unless the held one is as new; returns whether it did."""
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
        """Returns states to send of those shards that are held."""
        found = (self.shards.get(index) for index in indices)
        return [held.record() for held in found if held is not None and held.copy is not None]

    def image(self, index: int) -> Image | None:
        """Holds a shard's state while it is sent; None if it is not held."""
        held = self.shards.get(index)
        return held.image() if held is not None else None

    def contents(self) -> list[ShardContent]:
        """Returns a primary's initial content, which takes over the arrays."""
        return [self._content(shard) for shard in self.shards.values()]

    def _content(self, held: HeldShard) -> ShardContent:
        assert held.copy is not None
        assert held.values is not None and held.state is not None
        values, state = held.values, held.state
        memory = ClientMemory.restored(held.memory.record())
        return ShardContent(
            held.index,
            values.array.copy() if values.readers else writable(values.array),
            self.job.rule.restored_state([_own(array, state.is_read) for array in state.arrays]),
            held.copy.counter,
            held.copy.pushes,
            memory,
        )


def writable(array: Array) -> Array:
    """Returns the array itself if it is writable, else a copy."""
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()


def _own(array: Array, read: bool) -> Array:
    """Returns a writable state array; one that repeats a single number is left to the rule to make."""
    repeats = array.size > 1 and array.strides == (0,)
    return array if repeats else array.copy() if read else writable(array)


def copy_of_contents(job: Job, born: int, bucket: Bucket, epoch: int, contents: Sequence[ShardContent]) -> HeldCopy:
    """Returns a copy, at an epoch, from shards built here or found in the store."""
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
    """Returns a copy of a bucket that was served here until now; no shard of it is being changed."""
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
    """Keeps the records of a held bucket, served or a copy, on disk when the bucket is released.

    Returns shard -> its entry. Records of a copy that was being filled are kept only if they are complete.
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

"""What was found in a log, by job: which records are valid, and the shards' content after a restart (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from adamctl.errors import DamagedDataError
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule
from adamctl.model.layout import ParameterLayout
from adamctl.roles.ps.core.exactly_once import ClientMemory
from adamctl.roles.ps.core.flush import Entry, Slot
from adamctl.roles.ps.core.job import ShardContent
from adamctl.roles.ps.store.record import Holding, JobIdentity, ShardState, StoredRecord


class ReadableLog(Protocol):
    """The part of a log that is needed to read shards back.

    Attributes:
        loaded: number -> arrays read when the log was opened; callers remove the ones they use.
    """

    loaded: dict[int, list[Array]]

    def describe(self, sequences: Sequence[int]) -> dict[int, ShardState]: ...
    def read_all(self, sequences: Sequence[int]) -> dict[int, list[Array]]: ...


@dataclass
class FoundShard:
    """One shard's last record.

    Attributes:
        sequence: its number when the log was opened; 0 if it was written later, then its entry has the number.
        entry: its entry in the log.
        state: its description; None if it was written later.
        before: the records that it is a change of, when the log was opened: number -> description, oldest first.
    """

    sequence: int
    entry: Entry
    state: ShardState | None = None
    before: dict[int, ShardState] = field(default_factory=dict)

    def counts(self, began: int) -> bool:
        """Returns whether it belongs to a copy whose records start at number `began`."""
        return bool(self.entry.sequence) and (not self.sequence or self.sequence >= began)

    @property
    def number(self) -> int:
        return self.sequence or self.entry.sequence

    @property
    def numbers(self) -> dict[int, ShardState | None]:
        """All records that its state is in, oldest first -> their descriptions as far as known."""
        if self.sequence:
            return {**self.before, self.sequence: self.state}
        return dict.fromkeys([*(number for number, _ in self.entry.chain), self.entry.sequence])


@dataclass
class FoundJob:
    """One job's part of a log.

    Attributes:
        holding: its last holding record.
        holding_entry: that record's entry.
        shards: index -> its last record.
    """

    holding: Holding
    holding_entry: Entry
    shards: dict[int, FoundShard] = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        return [self.holding_entry, *(one.entry for one in self.shards.values())]

    @property
    def size_bytes(self) -> int:
        return sum(entry.record_bytes for entry in self.entries)

    def add(self, bucket: int, held: Held) -> None:
        """Adds a bucket that was held until now; its shards are the caller's matter, here and in `remove`."""
        self.holding.buckets[bucket] = held.buckets[bucket]
        if bucket in held.received:
            self.holding.received.add(bucket)

    def remove(self, bucket: int) -> tuple[int, int]:
        """Removes a bucket; returns its epoch and the number from which records of its shards count, or (0, 0)."""
        self.holding.received.discard(bucket)
        return self.holding.buckets.pop(bucket, (0, 0))

    def part(self, layout: ParameterLayout, buckets: Sequence[int]) -> FoundJob:
        """Returns what there is of some buckets now: a thread reads it while the loop may go on to free it."""
        described = [layout.buckets[bucket] for bucket in buckets]
        indices = [index for one in described for index in range(one.shard_start, one.shard_stop)]
        epochs = {bucket: self.holding.buckets[bucket] for bucket in buckets}
        holding = Holding(self.holding.job, epochs, self.holding.received.intersection(buckets))
        shards = {index: self.shards[index] for index in indices if index in self.shards}
        return FoundJob(holding, self.holding_entry, shards)

    def is_partial(self, layout: ParameterLayout, bucket: int) -> bool:
        """Says whether a bucket came from another server and shards of it had not arrived: nobody can serve it."""
        described = layout.buckets[bucket]
        count = len(entries_that_count(self, layout, [bucket]))
        return bucket in self.holding.received and count < described.shard_stop - described.shard_start

    def standing(self, layout: ParameterLayout, bucket: int) -> tuple[object, ...] | None:
        """Returns what is another one once the bucket's records are others; None: it has none."""
        if bucket not in self.holding.buckets:
            return None
        counting = entries_that_count(self, layout, [bucket])
        return tuple((index, id(entry), *self.shards[index].numbers) for index, entry in counting.items())


class Held:
    """The buckets of one job that this server holds, as in its holding record; `entry` is that record's.

    Attributes:
        buckets, received: as in `Holding`.
    """

    def __init__(self, identity: JobIdentity, entry: Entry | None = None) -> None:
        self.identity = identity
        self.entry = entry or Entry(self, 256, identity)
        self.entry.owner = self
        self.buckets: dict[int, tuple[int, int]] = {}
        self.received: set[int] = set()

    def remove(self, bucket: int) -> None:
        self.buckets.pop(bucket, None)
        self.received.discard(bucket)

    def renumber(self, next_sequence: int) -> None:
        """Adjusts numbers after a group was not written: its numbers are reused, for records that are valid too."""
        self.buckets = {bucket: (epoch, min(began, next_sequence)) for bucket, (epoch, began) in self.buckets.items()}


def found_jobs(records: Sequence[StoredRecord]) -> tuple[dict[JobIdentity, FoundJob], list[Slot]]:
    """Returns the jobs in a log, and its slots in order; records that are not valid are in no job."""
    last_holding = {r.description.job: r for r in records if isinstance(r.description, Holding)}
    jobs: dict[JobIdentity, FoundJob] = {}
    for identity, record in last_holding.items():
        assert isinstance(record.description, Holding)
        if record.description.buckets:
            jobs[identity] = FoundJob(record.description, _entry(record))
    for record in records:
        described = record.description
        if isinstance(described, ShardState) and described.job in jobs:
            job = jobs[described.job]
            if record.sequence >= min(began for _, began in job.holding.buckets.values()):
                following = _following(job.shards.get(described.shard), record, described)
                if following is not None:
                    job.shards[described.shard] = following
    live = {number: e for job in jobs.values() for e in job.entries for number in (e.sequence, *dict(e.chain))}
    return jobs, [Slot(record.sequence, record.size_bytes, live.get(record.sequence)) for record in records]


def _following(before: FoundShard | None, record: StoredRecord, state: ShardState) -> FoundShard | None:
    """Returns a shard with its next record: of the whole state, or a change of what was found before.

    None if that is gone: it was superseded, and so is this record, which is only not removed yet.
    """
    found = FoundShard(record.sequence, _entry(record), state)
    if state.changed and (before is None or before.state is None):
        return None
    if state.changed and before is not None and before.state is not None:
        found.before = {**before.before, before.sequence: before.state}
        found.entry.chain = list(before.entry.chain)
        found.entry.chain.append((before.sequence, before.entry.record_bytes - sum(dict(before.entry.chain).values())))
        found.entry.record_bytes += before.entry.record_bytes
    return found


def _entry(record: StoredRecord) -> Entry:
    entry = Entry(None, record.size_bytes, record.description.job)
    entry.sequence, entry.record_bytes = record.sequence, record.size_bytes
    if isinstance(record.description, ShardState):
        entry.version = (record.description.epoch, record.description.counter, record.description.pushes)
    return entry


def entries_that_count(job: FoundJob, layout: ParameterLayout, buckets: Sequence[int]) -> dict[int, Entry]:
    """Returns the valid entries of the buckets' shards; a shard without one has its initial values."""
    counting: dict[int, Entry] = {}
    for bucket in buckets:
        _, began = job.holding.buckets[bucket]
        described = layout.buckets[bucket]
        for index in range(described.shard_start, described.shard_stop):
            if index in job.shards and job.shards[index].counts(began):
                counting[index] = job.shards[index].entry
    return counting


def found_contents(
    store: ReadableLog, job: FoundJob, layout: ParameterLayout, buckets: Sequence[int], rule: Rule
) -> dict[int, ShardContent]:
    """Reads shards back; blocking. Shards without a valid record are omitted.

    Raises:
        DamagedDataError: a record does not fit the job's layout or rule.
    """
    wanted = [job.shards[index] for index in entries_that_count(job, layout, buckets)]
    chains = [one.numbers for one in wanted]
    numbers = {number: state for chain in chains for number, state in chain.items()}
    loaded = {number: store.loaded.pop(number, None) for number in numbers}  # None: unloaded meanwhile
    states = {number: state for number, state in numbers.items() if state is not None}
    states |= store.describe([number for number, state in numbers.items() if state is None])
    arrays = {number: one for number, one in loaded.items() if one is not None}
    arrays |= store.read_all([number for number in numbers if number not in arrays])
    found = {}
    for chain in chains:
        whole: list[Array] = []
        for number in chain:
            whole = _overlaid(whole, arrays.pop(number), states[number])
        state = states[number]
        found[state.shard] = _content(msgspec.structs.replace(state, arrays=len(whole)), layout, rule, whole)
    return found


def _overlaid(before: list[Array], arrays: list[Array], state: ShardState) -> list[Array]:
    """Returns a state's arrays after a record with some or all of them."""
    if not state.changed:
        return arrays
    if state.changed[-1] >= len(before):
        what = f"the store's record of shard {state.shard} of job {state.job.name!r} changes array {state.changed[-1]}"
        raise DamagedDataError(f"{what}; there are {len(before)}")
    changed = dict(zip(state.changed, arrays, strict=True))
    return [changed.get(place, array) for place, array in enumerate(before)]


def _content(state: ShardState, layout: ParameterLayout, rule: Rule, arrays: list[Array]) -> ShardContent:
    expected = (layout.shards[state.shard].size, 1 + len(rule.state_names))
    if (state.size, state.arrays) != expected:
        raise DamagedDataError(
            f"the store's record of shard {state.shard} of job {state.job.name!r} has {state.arrays} arrays of "
            f"{state.size} elements; expected {expected[1]} of {expected[0]}"
        )
    memory = ClientMemory.restored(state.memory)
    return ShardContent(
        state.shard, arrays[0], rule.restored_state(arrays[1:]), state.counter, state.pushes, memory, state.epoch
    )

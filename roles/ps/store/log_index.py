"""The index of the store's log: which jobs hold which buckets, and where their shards' records are (pure).

Records found in the log at start are kept until it is known what becomes of their job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from adamctl.kernels.operation import Array
from adamctl.model.layout import Bucket
from adamctl.roles.ps.core.flush import Entry, FlushCore, Waiter
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.roles.ps.store.record import Holding, JobIdentity
from adamctl.roles.ps.store.recovered_jobs import FoundJob, FoundShard, Held


class Holdings:
    """All jobs in the log of one server.

    Attributes:
        found: per job, records that are not in memory: found when the log was opened, or spared.
    """

    def __init__(
        self,
        found: dict[JobIdentity, FoundJob],
        loaded: dict[int, list[Array]],
        flush: FlushCore,
        clock: Callable[[], float],
        kick: Callable[[], None],
    ) -> None:
        """`loaded`: number -> arrays of records read at start; `kick`: called when a waiter needs a group to start."""
        self.found = found
        self._loaded, self._flush, self._clock, self._kick = loaded, flush, clock, kick
        self._held: dict[str, Held] = {}

    def take(self, identity: JobIdentity, buckets: Mapping[int, int]) -> Held:
        """Notes that `buckets` (-> epoch) are built here, to be written; returns the job's holding."""
        held = self._held_of(identity)
        following = self._following
        for bucket, epoch in buckets.items():
            began = held.buckets[bucket][1] if bucket in held.buckets else following
            held.buckets[bucket] = (epoch, began)
            held.received.discard(bucket)
        self._flush.changed(held.entry, self._clock(), 0)
        return held

    def _held_of(self, identity: JobIdentity) -> Held:
        held = self._held.get(identity.name)
        if held is None or held.identity != identity:
            found = self.found.get(identity)
            held = self._held[identity.name] = Held(identity, found.holding_entry if found is not None else None)
            if found is not None:
                held.buckets, held.received = dict(found.holding.buckets), set(found.holding.received)
        return held

    @property
    def _following(self) -> int:
        """The number of the first record that is not in a group yet."""
        group = self._flush.group
        return self._flush.next_sequence + (len(group.items) if group is not None else 0)

    def keep(
        self,
        identity: JobIdentity,
        bucket: int,
        epoch: int,
        shards: Iterable[Shard | HeldShard],
        loaded: Mapping[int, Entry] | None = None,
        restored: bool = False,
    ) -> None:
        """Gives shards of a bucket's copy entries in the log if they have none, and notes that the bucket is held.

        `loaded`: the entries that they were read from. If None, the bucket comes from another server: records found of
        it stay until each shard's new state is on disk, since they are all there is if the other copies are lost
        meanwhile. `restored`: shards without a record come from a checkpoint, which may be deleted later, so they are
        written too.
        """
        held = self._held_of(identity)
        shards = list(shards)
        inherited = self._inherited(identity, bucket, [shard.index for shard in shards])
        for shard in shards:
            old = inherited.get(shard.index)
            if shard.entry is None or shard.entry.gone:
                read = (loaded or {}).get(shard.index)
                shard.entry = old or (read if read is not None and not read.gone else Entry(None, 0, identity))
            elif old is not None and old is not shard.entry:
                self._flush.forget(old)
            shard.entry.size_bytes, shard.entry.spared = size_bytes(shard), False
            shard.entry.note(None)  # its records may be of another copy: no change of them is written
            if isinstance(shard, Shard) or shard.copy is not None:
                shard.entry.owner = shard
                if restored:
                    self._write_once(shard.entry)
                if shard.entry is old and loaded is None:
                    self._flush.changed(old, self._clock(), 0)
        if bucket not in held.buckets:
            held.received.add(bucket)
        known, began = held.buckets.get(bucket, (0, self._following))
        held.buckets[bucket] = (epoch, began)
        if known != epoch:
            self._hurry(held)

    def _inherited(self, identity: JobIdentity, bucket: int, indices: Iterable[int]) -> dict[int, Entry]:
        """Removes a bucket's shards from what was found, and returns the valid entries; they are not read any more."""
        found = self.found.get(identity)
        _, began = found.remove(bucket) if found is not None else (0, 0)
        if found is None or not began:
            return {}
        entries = {}
        for index in indices:
            if index not in found.shards:
                continue
            one = found.shards.pop(index)
            self._unload(one)
            late = one.entry.flying and one.entry.owner is not None  # a state of the former owner is being written
            if one.counts(began) and not late:
                entries[index] = one.entry
            else:
                self._flush.forget(one.entry)
        self._forget_empty(identity)
        return entries

    def let_go(self, identity: JobIdentity, bucket: int, spared: Mapping[int, Entry] | None = None) -> None:
        """Notes that a bucket is no longer held; the core frees its shards' entries.

        `spared`: entries that are not freed (shard -> entry). The bucket then stays in `found` until `free`.
        """
        held = self._held.get(identity.name)
        if held is None or held.identity != identity or bucket not in held.buckets:
            for entry in (spared or {}).values():
                self._flush.forget(entry)
        elif spared:
            found = self.found.setdefault(identity, FoundJob(Holding(identity, {}), held.entry))
            found.add(bucket, held)
            found.shards |= {index: FoundShard(0, entry) for index, entry in spared.items()}
        else:
            held.remove(bucket)
            self._hurry(held)

    def free_full(self, identity: JobIdentity, view: JobView, node: str) -> None:
        """Frees records found of buckets that `node` (this server) should not hold and that have enough copies.

        Not where a backup of the configuration was restored since they were written: the record may be older than they.
        """
        found = self.found.get(identity)
        for bucket, (epoch, _) in tuple(found.holding.buckets.items()) if found is not None else ():
            record, described = view.buckets[bucket], view.layout.buckets[bucket]
            members = {record.primary, *record.in_sync}
            if node in members or node in record.learners or record.restored_since(epoch):
                continue
            if len(members) >= view.record.replication:
                self.free(identity, bucket, range(described.shard_start, described.shard_stop))

    def free_found(self, identity: JobIdentity, buckets: Iterable[Bucket]) -> None:
        """Frees records found of buckets that begin as their job did: they are of a job that only looks the same."""
        for bucket in buckets:
            found = self.found.get(identity)
            if found is not None and bucket.index in found.holding.buckets:
                self.free(identity, bucket.index, range(bucket.shard_start, bucket.shard_stop))

    def free(self, identity: JobIdentity, bucket: int, indices: Iterable[int]) -> None:
        """Frees records found of a bucket that enough other servers hold; `indices`: its shards."""
        held, found = self._held_of(identity), self.found[identity]
        for index in indices:
            if index in found.shards:
                self._unload(found.shards[index])
                self._flush.forget(found.shards.pop(index).entry)
        held.remove(bucket)
        found.remove(bucket)
        self._hurry(held)
        self._forget_empty(identity)

    def _forget_empty(self, identity: JobIdentity) -> None:
        """Forgets what was found of a job when no buckets of it are left."""
        found = self.found[identity]
        if not found.holding.buckets:
            self.unload(found)
            for one in self.found.pop(identity).shards.values():
                self._flush.forget(one.entry)

    def _hurry(self, held: Held) -> None:
        """Puts the holding into the next group, before the job's shards with waiters."""
        self._flush.changed(held.entry, self._clock(), 0)
        self._flush.wait(Waiter(None), held.entry, held.entry.changes)
        self._kick()

    def _write_once(self, entry: Entry) -> None:
        if not entry.sequence and not entry.changes:
            self._flush.changed(entry, self._clock(), 0)

    def forget_found(self, identity: JobIdentity) -> None:
        """Frees all records found of a job: it has ended, or starts over."""
        found = self.found.pop(identity, None)
        if found is not None:
            self.unload(found)
            for entry in found.entries:
                self._flush.forget(entry)

    @property
    def loaded_bytes(self) -> int:
        """Memory of arrays that were read when the log was opened and are not used yet."""
        return sum(array.nbytes for arrays in list(self._loaded.values()) for array in arrays)

    def unload_all(self) -> None:
        """Like `unload`, for all jobs."""
        self._loaded.clear()

    def unload(self, found: FoundJob) -> None:
        """Frees the memory of a job's loaded arrays; if they are needed after all, they are read again."""
        for one in found.shards.values():
            self._unload(one)

    def _unload(self, one: FoundShard) -> None:
        for number in one.numbers:
            self._loaded.pop(number, None)

    def release(self, name: str) -> None:
        """Frees a job's holding; the core frees its shards."""
        held = self._held.pop(name, None)
        if held is not None:
            self._flush.forget(held.entry)

    def renumber(self) -> None:
        """Adjusts holdings after a group was not written: its numbers are reused."""
        for held in self._held.values():
            held.renumber(self._flush.next_sequence)


def size_bytes(shard: Shard | HeldShard) -> int:
    """Returns a shard's state size in memory."""
    return shard.size_bytes if isinstance(shard, HeldShard) else 4 * shard.size * (1 + len(shard.state.arrays))

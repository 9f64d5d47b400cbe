"""Planted faults of the server's shells: its store, its copies, its jobs, and what it says to other servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lmdb
import msgspec

from adamctl.config.records import NodeRecord, node_key
from adamctl.roles.configuration import read_record
from adamctl.roles.ps import checkpoint_writer as saving
from adamctl.roles.ps.core.exactly_once import Client, ClientKey, ClientMemory, ClientRecord
from adamctl.roles.ps.core.flush import Entry, FlushCore, Item, Slot
from adamctl.roles.ps.core.instructions import Propose
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.shard import Batch, Shard
from adamctl.roles.ps.core.shard_message import CopyRecord, decode_body
from adamctl.roles.ps.jobs import copy_builder as copies
from adamctl.roles.ps.jobs.keeper import JobKeeper
from adamctl.roles.ps.replication import shell as replicating
from adamctl.roles.ps.replication.core import proposals
from adamctl.roles.ps.replication.core.bucket_group import Member, ReplicaGroup, ShardReplica
from adamctl.roles.ps.replication.core.job_buckets import JobReplicas, VersionedRecord
from adamctl.roles.ps.replication.core.replica_link import Link
from adamctl.roles.ps.replication.core.replication_core import ReplicationCore
from adamctl.roles.ps.replication.shell import ReplicationShell
from adamctl.roles.ps.store import recovered_jobs as store_contents
from adamctl.roles.ps.store.flusher import StoreWriter
from adamctl.roles.ps.store.lmdb_log import LogStore, Writing
from adamctl.roles.ps.store.log_index import Holdings
from adamctl.roles.ps.store.record import JobIdentity, ShardState
from adamctl.roles.ps.store.recovered_jobs import Held
from adamctl.wire.messages import ConfigChanges
from tests.sim.servers.cluster import MOVE_KINDS, ServerCluster, ServerFault

# --- the weather that shows some of them ----------------------------------------------------------------------------


def one_copy(cluster: ServerCluster, *kinds: str) -> None:
    """There is one durable copy of each bucket, which moves, or is read back from its store."""
    cluster.moves_matter, cluster.stores_matter = True, False
    cluster.replication = cluster.min_in_sync = 1
    cluster.acks = cluster.ledger.acks = "durable"
    cluster.ledger.single = True
    cluster.invariants.copies_min = cluster.invariants.min_in_sync = 1
    cluster.kinds = kinds


def _all_lost(cluster: ServerCluster, *kinds: str) -> None:
    """All memory is lost again and again, and with it pushes that are not on disk."""
    cluster.stores_matter, cluster.moves_matter = True, False
    cluster.acks = cluster.ledger.acks = "replicated"
    cluster.kinds = kinds


def _saves(cluster: ServerCluster, *kinds: str) -> None:
    """Checkpoints are written all the time."""
    cluster.saves = True
    cluster.kinds = kinds


# --- the log --------------------------------------------------------------------------------------------------------


def _compact_all(self: FlushCore, chosen: dict[Entry, None]) -> tuple[list[Slot], dict[Entry, None]]:
    """All but what has just been written is taken for superseded."""
    removed, copied = _compact(self, chosen)
    if removed:
        removed += self._slots
        self._slots.clear()
    return removed, copied


def _holding_unwritten(self: Holdings, held: Held) -> None:
    """That a bucket is held, or no longer, is not written."""


def _content_without_memory(state: ShardState, *rest: Any) -> Any:
    return replace(_content(state, *rest), memory=ClientMemory())


def _content_without_state(state: ShardState, layout: Any, rule: Any, arrays: list[Any]) -> Any:
    return replace(_content(state, layout, rule, arrays), state=rule.initial_state(state.size))


def _content_without_version(state: ShardState, *rest: Any) -> Any:
    return replace(_content(state, *rest), counter=0, epoch=0)


def _recorded_as_it_is_now(self: StoreWriter, item: Item) -> Writing:
    """A record says which version its shard has when it is made, not when its state was taken."""
    writing, image = _writing(self, item), self._images.get(item.sequence)
    if item.copy_of or image is None or not isinstance(image.shard, Shard):
        return writing
    return replace(writing, description=msgspec.structs.replace(writing.description, counter=image.shard.counter))


def _anchor_counts_on(self: LogStore, writings: Sequence[Writing], first: int, taken: Any) -> list[int]:
    before = self._anchor
    try:
        return _append(self, writings, first, taken)
    except lmdb.Error:
        self._anchor = replace(before, next=before.next + len(writings))
        raise


async def _not_awaited(self: StoreWriter, identity: JobIdentity, buckets: dict[int, int]) -> None:
    self.holdings.take(identity, buckets)


def _keep_in_new_places(
    self: Holdings, identity: JobIdentity, bucket: int, epoch: int, shards: Any, loaded: Any = None, *rest: Any
) -> None:
    """Where the records are that shards were read from is forgotten."""
    _keep(self, identity, bucket, epoch, shards, {} if loaded is not None else None, *rest)


def _inherit_nothing(self: Holdings, identity: JobIdentity, bucket: int, indices: Any) -> dict[int, Any]:
    _inherited(self, identity, bucket, indices)
    return {}


_writing, _append, _keep = StoreWriter._writing, LogStore._append, Holdings.keep
_inherited = Holdings._inherited
_compact = FlushCore._compact
_content = store_contents._content

# --- jobs -----------------------------------------------------------------------------------------------------------


async def _told_nobody(self: JobKeeper, job: Any, view: Any) -> bool:
    """Nobody is told that buckets have been served."""
    return True


def _nothing_lost(self: JobReplicas, known: VersionedRecord) -> bool:
    """A process takes up what a former one of its name served, as if it had been placed on this one."""
    return True


async def _built_over(self: copies.Copies, job: Any, view: Any, buckets: Sequence[int]) -> Any:
    """What should be read back is made as the job began."""
    return await self._begin_again(job, view, buckets)


async def _lost_and_not_noticed(self: JobKeeper) -> int:
    """A process without a key in the configuration, which has been lost already, takes all for its own."""
    found = await read_record(self._store, node_key(self._context.node), NodeRecord)
    return found[1] if found is not None else 0


def _without_conditions(conditions: Any, puts: Any) -> ConfigChanges:
    return ConfigChanges({}, puts)


# --- checkpoints ----------------------------------------------------------------------------------------------------


def _saved_as_it_is_now(writer: Any, images: list[Any]) -> None:
    """A checkpoint says which version a shard has when it is written, not when its state was taken."""
    _save(writer, [replace(held, counter=held.shard.counter) for held in images])


_save = saving._write

# --- what is shipped ------------------------------------------------------------------------------------------------


def _state_never_copied(self: Batch, shard: Shard) -> None:
    _batch(self, shard)
    self.copy_state = False


def _record_without_state(self: ShardReplica, since: int = -1) -> tuple[CopyRecord, Any]:
    record, image = _record(self, since)
    return CopyRecord(record.copy, [record.arrays[0], *(array * 0 for array in record.arrays[1:])]), image


def _without_refusals(self: Client) -> ClientRecord:
    return ClientRecord(*self.key, self.done)


def _synced_at_once(self: Link, group: ReplicaGroup, member: Member, now: float) -> None:
    """Whether a learner's disk has its copy is not asked."""
    member.synced = self._outbox.needs_review = True


def _views_of_the_body(body: memoryview, memory: Any = None) -> list[CopyRecord]:
    return decode_body(body) if len(body) else []


def _asked_of_nobody(self: ReplicationShell, ask: Any) -> None:
    """States are given back before they are sent."""
    replicating.release(ask.images)
    _ask(self, replace(ask, images=()))


def _go_on_in_silence(self: Job, index: int, client: ClientKey, number: int) -> None:
    shard = self.shards.get(index)
    entry = shard.memory.find(client) if shard is not None else None
    if shard is None or entry is None or entry.accepted != entry.done or number <= entry.done:
        return
    shard.memory.accept(entry, number)
    shard.memory.settle(entry, number, 0, shard.counter + 1)


def _silent(self: ReplicationCore, order: int, why: str, now: float) -> list[Any]:
    """A request that fails is waited for."""
    return []


async def _proposed_anyway(self: ReplicationShell, propose: Propose) -> None:
    """Records become what they should, whoever was faster."""
    changes = msgspec.structs.replace(propose.changes, conditions={})
    await _propose(self, replace(propose, changes=changes))


_propose = ReplicationShell._propose
_batch, _record = Batch.__init__, ShardReplica.record
_ask = ReplicationShell.ask


MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "compaction-discards-live",
            "compaction takes what it has not rewritten for superseded",
            [(FlushCore, "_compact", _compact_all)],
        ),
        ServerFault(
            "never-confirmed",
            "a group counts as durable after one transaction",
            [(LogStore, "_confirm", lambda self: None)],
        ),
        ServerFault(
            "holding-unwritten",
            "that a bucket is held is not written",
            [(Holdings, "_hurry", _holding_unwritten)],
            lambda cluster: one_copy(cluster, "drain", "drain", "drain", "crash", "crash-all", "heal"),
        ),
        ServerFault(
            "restored-without-memory",
            "shards come back from the store without the numbers of their clients",
            [(store_contents, "_content", _content_without_memory)],
        ),
        ServerFault(
            "restored-without-state",
            "shards come back from the store without the rule's state",
            [(store_contents, "_content", _content_without_state)],
        ),
        ServerFault(
            "restored-without-version",
            "shards come back from the store as if they had never changed",
            [(store_contents, "_content", _content_without_version)],
        ),
        ServerFault(
            "served-not-told",
            "nobody is told that a server has served buckets of a job",
            [(JobKeeper, "tell_served", _told_nobody)],
        ),
        ServerFault(
            "nothing-is-lost",
            "a process takes up what a former one of its name served",
            [(JobReplicas, "_first", _nothing_lost)],
        ),
        ServerFault(
            "built-over-the-store",
            "buckets that are in the store are made as the job began",
            [(copies.Copies, "_load", _built_over)],
        ),
        ServerFault(
            "state-written-over",
            "a batch writes over the rule's state while it is shipped or saved",
            [(Batch, "__init__", _state_never_copied)],
        ),
        ServerFault(
            "state-left-out",
            "a state is shipped without the rule's",
            [(ShardReplica, "record", _record_without_state)],
        ),
        ServerFault(
            "refusals-left-out",
            "a memory is recorded without what was refused",
            [(Client, "record", _without_refusals)],
        ),
        ServerFault(
            "learner-not-on-disk",
            "a learner becomes a member before its copy is on disk",
            [(Link, "_sync", _synced_at_once)],
        ),
        ServerFault(
            "body-not-copied",
            "a copy is made of views of the buffer that it came in",
            [(replicating, "own_records", _views_of_the_body)],
        ),
        ServerFault(
            "released-before-sent",
            "states are given back before they are sent to another server",
            [(ReplicationShell, "ask", _asked_of_nobody)],
        ),
        ServerFault(
            "passed-over-in-silence",
            "a memory changes within a version, when a client goes on after numbers that are lost",
            [(Job, "go_on_from", _go_on_in_silence)],
            lambda cluster: _all_lost(cluster, "crash-all", "crash-all", "crash-two", "crash", "weather"),
        ),
        ServerFault(
            "failure-not-told",
            "the core is not told of requests to other servers that fail",
            [(ReplicationCore, "failed", _silent)],
        ),
        ServerFault(
            "recorded-as-it-is-now",
            "a record says which version its shard has when it is made, not when its state was taken",
            [(StoreWriter, "_writing", _recorded_as_it_is_now)],
        ),
        ServerFault(
            "anchor-counts-on",
            "the log's anchor counts a group that found no space",
            [(LogStore, "_append", _anchor_counts_on)],
        ),
        ServerFault(
            "holding-not-awaited",
            "a bucket is served before it is on disk that it is held",
            [(StoreWriter, "hold", _not_awaited)],
            lambda cluster: one_copy(cluster, "crash", "crash", "crash-all", "weather"),
        ),
        ServerFault(
            "adopted-in-new-places",
            "where the records are that shards were read from is forgotten",
            [(Holdings, "keep", _keep_in_new_places), (Holdings, "_inherited", _inherit_nothing)],
            lambda cluster: one_copy(cluster, "crash", "crash", "crash-all", "weather", "full"),
        ),
        ServerFault(
            "taken-up-anyway",
            "a server takes its buckets up again whatever has become of them meanwhile",
            [(proposals, "ConfigChanges", _without_conditions)],
            lambda cluster: one_copy(cluster, *MOVE_KINDS),
        ),
        ServerFault(
            "lost-before-it-read",
            "a process that was lost before it knew when it was registered takes nothing for lost",
            [(JobKeeper, "_own_revision", _lost_and_not_noticed)],
            lambda cluster: one_copy(cluster, "alone", "alone", "one-way", "crash", "weather"),
        ),
        ServerFault(
            "proposed-anyway",
            "records of buckets are changed whoever was faster",
            [(ReplicationShell, "_propose", _proposed_anyway)],
        ),
        ServerFault(
            "saved-as-it-is-now",
            "a checkpoint says which version a shard has when it is written, not when its state was taken",
            [(saving, "_write", _saved_as_it_is_now)],
            lambda cluster: _saves(cluster, "crash", "weather", "heal"),
        ),
        ServerFault(
            "saved-without-a-lease",
            "a checkpoint is written and answered without a look at the lease",
            [(saving, "save_refusal", lambda *_: None)],
            lambda cluster: _saves(cluster, "pause", "pause", "alone", "alone", "one-way", "heal", "heal"),
        ),
    )
}

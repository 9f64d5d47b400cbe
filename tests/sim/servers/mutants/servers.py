"""Planted faults of servers: each a mistake that is easily made, as a change of one function while a seed runs."""

from __future__ import annotations

from typing import Any

import msgspec

from adamctl.roles.ps.core.acknowledge import Acknowledgements, CopyWaiter
from adamctl.roles.ps.core.arriving_push import ArrivingPush
from adamctl.roles.ps.core.exactly_once import Client, ClientKey, ClientMemory, MemoryRecord, Verdict
from adamctl.roles.ps.core.instructions import AnswerPush, Reply
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Batch, Shard
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.roles.ps.replication.core import placement as core_plan
from adamctl.roles.ps.replication.core import proposals as core_proposals
from adamctl.roles.ps.replication.core.bucket_group import Member, Part, ReplicaGroup, ShardReplica
from adamctl.roles.ps.replication.core.job_buckets import JobReplicas, VersionedRecord
from adamctl.roles.ps.replication.core.placement import AddLearner, RemoveMember, Situation, Step
from adamctl.roles.ps.replication.core.secondary import Replies
from adamctl.roles.ps.replication.core.takeover import Takeover
from adamctl.wire.messages import ReplicaPrepareReply, ReplicaPrepareRequest
from tests.sim.servers.cluster import LOST_AFTER_S, ServerCluster, ServerFault

# --- leases ---------------------------------------------------------------------------------------------------------


def _from_receipt(cluster: ServerCluster) -> None:
    cluster.kinds = ("one-way", "one-way", "weather", "weather", "heal")
    for server in cluster.servers.values():
        server.from_receipt = True


def _late_answers(cluster: ServerCluster) -> None:
    """Answers wait for disks and other servers, while leases run out."""
    cluster.kinds = ("pause", "pause", "alone", "weather", "full", "heal")


def _stale_primaries(cluster: ServerCluster) -> None:
    """Primaries are stopped or alone for longer than their leases, and go on."""
    cluster.kinds = ("pause", "pause", "pause", "alone", "one-way", "heal", "heal")


def _lags(cluster: ServerCluster) -> None:
    """The last copy of a bucket lacks what the others had."""
    cluster.kinds = ("lag", "lag", "weather", "heal")


def _lease_as_long_as_the_wait(cluster: ServerCluster) -> None:
    cluster.lease_s = LOST_AFTER_S
    for server in cluster.servers.values():
        server.lease_s = LOST_AFTER_S


# --- clients --------------------------------------------------------------------------------------------------------


def _one_name_for_all_sessions(cluster: ServerCluster) -> None:
    for worker in cluster.clients:
        worker.names_sessions = False


# --- copies ---------------------------------------------------------------------------------------------------------


def _wait_for_nobody(self: ShardReplica, waiter: Any, counter: int) -> None:
    """Acknowledged when it is in the primary's memory."""


def _one_member_less(self: ReplicaGroup, over: list[Any]) -> None:
    counted = [node for node, member in self.members.items() if member.part is not Part.LEARNER]
    self.counted = tuple(counted[:1])
    for replica in self.shards.values():
        self._commit(replica, over)


_record = ShardReplica.record


def _record_without_memory(self: ShardReplica, since: int = -1) -> tuple[CopyRecord, Any]:
    record, image = _record(self)
    return CopyRecord(msgspec.structs.replace(record.copy, memory=MemoryRecord()), record.arrays), image


def _record_with_memory_of_its_bucket(self: ShardReplica, since: int = -1) -> tuple[CopyRecord, Any]:
    record, image = _record(self)
    shards = [replica.shard for replica in self.group.shards.values()]
    highest: dict[Any, Any] = {}
    for one in (client for shard in shards for client in shard.memory.record().clients):
        known = highest.get((one.node, one.incarnation))
        if known is None or known.sequence < one.sequence:
            highest[one.node, one.incarnation] = one
    memory = msgspec.structs.replace(record.copy.memory, clients=tuple(highest.values()))
    return CopyRecord(msgspec.structs.replace(record.copy, memory=memory), record.arrays), image


def _any_later_number(self: Client, sequence: int) -> Verdict:
    if sequence > self.accepted:
        return Verdict.NEXT
    return Verdict.DONE if sequence <= self.done else Verdict.GAP


def _learner_counts_at_once(self: ReplicaGroup, member: Member) -> None:
    member.begun = True
    member.missing = set()
    member.part = Part.COUNTED
    self.counted = (*self.counted, member.node)


def _always_first(self: JobReplicas, known: VersionedRecord) -> bool:
    """A process takes up the place that its name has, though it has just been started."""
    return True


def _found_by_name(self: ClientMemory, key: ClientKey) -> Client | None:
    """A process is taken for the one that had its name before."""
    return next((client for known, client in self.clients.items() if known[0] == key[0]), None) or _find(self, key)


def _forgets_the_dead(self: ClientMemory, key: ClientKey) -> Client | None:
    """What a process has pushed is forgotten when the next one of its name comes."""
    for known in [known for known in self.clients if known[0] == key[0] and known[1] < key[1]]:
        if self.clients[known].done == self.clients[known].accepted:
            del self.clients[known]
    return _find(self, key)


_find = ClientMemory.find
_plan = core_plan.plan


def _remove_first(situation: Situation, node: str) -> list[Step]:
    """Whoever moves takes the old copy away first, and then makes the new one."""
    steps: list[Step] = []
    for step in _plan(situation, node):
        record = situation.records[step.bucket]
        others = [member for member in record.in_sync if member != node]
        leaving = [member for member in others if member in situation.draining] or others
        if isinstance(step, AddLearner) and leaving and len(record.in_sync) >= situation.replication:
            step = RemoveMember(step.bucket, leaving[0], "to make room")
        steps.append(step)
    return steps


def _two_hosts(cluster: ServerCluster) -> None:
    """Two servers are on one machine; servers die and are back only after their copies have been made elsewhere."""
    cluster.put_on_hosts({"p1": "x", "p2": "x", "p3": "y", "p4": "y"})
    cluster.kinds = ("crash", "crash", "fourth", "drain")


def _each_fails_alone(self: Situation, node: str) -> str:
    """No two servers count as being on one machine."""
    return node


# --- disks and memory -----------------------------------------------------------------------------------------------


def _no_last_look(self: Acknowledgements, answer: AnswerPush, waiter: Any) -> AnswerPush:
    return answer


def _no_fence(self: Replies, token: Any, peer: str, message: ReplicaPrepareRequest, records: Any, now: float) -> None:
    """Whoever ships states is taken for the primary, whatever epoch it is of."""
    copies = self._copies
    older = {
        bucket
        for bucket, epoch in message.epochs.items()
        if bucket in copies.copies and bucket not in message.begins and epoch < copies.known[bucket].record.epoch
    }
    if not older or message.receiver != self._outbox.incarnation:
        _prepare(self, token, peer, message, records, now)
        return
    copies.heard_s[peer] = now
    bucket_of = copies.job.layout.bucket_of_shard
    waiter = CopyWaiter(None)
    self._take(message, [one for one in records if bucket_of[one.copy.shard] in older], {}, waiter)
    reply = Reply(token, ReplicaPrepareReply(self._outbox.incarnation, {}, {}))
    if waiter.missing:
        waiter.token = reply
    else:
        self._outbox.emit(reply)


_prepare = Replies.prepare


def _record_without_epoch(self: ShardReplica, since: int = -1) -> tuple[CopyRecord, Any]:
    record, image = _record(self, since)
    return CopyRecord(msgspec.structs.replace(record.copy, epoch=1), record.arrays), image


def _not_synced(cluster: ServerCluster) -> None:
    cluster.acks = cluster.ledger.acks = "durable"
    cluster.kinds = ("crash-all", "crash-all", "crash-two", "crash", "weather")
    for server in cluster.servers.values():
        server.disk.waits = False


_batch = Batch.__init__


def _always_in_place(self: Batch, shard: Shard) -> None:
    _batch(self, shard)
    if not self.in_place:
        shard.spare, self.target, self.in_place = self.target, None, True


def _taken_if_anything_was(self: ArrivingPush, piece: int) -> bool:
    return any(self.push.results[position] is not None for position in (*self.positions[piece], 0))


_push = ServerCore.push


def _answered_as_it_was_begun(
    self: ServerCore,
    token: Any,
    connection: int,
    client: ClientKey,
    request: Any,
    body: Any,
    now: float,
    arriving: Any = None,
) -> list[Any]:
    """What could not be applied on the way is answered like what was."""
    if arriving is not None and arriving.touched:
        done = next(result for result in arriving.push.results if result is not None)
        for position, part in enumerate(request.parts):
            if arriving.push.results[position] is None:
                arriving.push.settle(position, msgspec.structs.replace(done, shard=part.shard))
    return _push(self, token, connection, client, request, body, now, arriving)


MUTANTS = {
    one.name: one
    for one in (
        ServerFault("lease-from-receipt", "a lease counts from when the answer came", cluster=_from_receipt),
        ServerFault("g-equals-d", "D is as long as G", cluster=_lease_as_long_as_the_wait),
        ServerFault(
            "lease-not-rechecked",
            "the lease is looked at when a push comes, and not when it is answered",
            [(Acknowledgements, "_last_look", _no_last_look)],
            _late_answers,
        ),
        ServerFault(
            "fence-skipped",
            "a copy takes states of older epochs, and nobody is told of a newer one",
            [(Replies, "prepare", _no_fence)],
            _stale_primaries,
        ),
        ServerFault(
            "epoch-not-persisted",
            "states are kept and compared without the epochs that they were made in",
            [(ShardReplica, "record", _record_without_epoch)],
        ),
        ServerFault(
            "acknowledged-before-prepared",
            "a push is acknowledged when it is in the primary's memory",
            [(ShardReplica, "wait", _wait_for_nobody)],
        ),
        ServerFault(
            "acknowledged-without-a-member",
            "one of the members is not waited for",
            [(ReplicaGroup, "recount", _one_member_less)],
        ),
        ServerFault(
            "memory-left-out",
            "a state is shipped without the numbers of its clients",
            [(ShardReplica, "record", _record_without_memory)],
        ),
        ServerFault(
            "memory-per-bucket",
            "a state is shipped with the highest numbers of its bucket",
            [(ShardReplica, "record", _record_with_memory_of_its_bucket)],
        ),
        ServerFault(
            "window-instead-of-next",
            "any number above the last is applied",
            [(Client, "judge", _any_later_number)],
        ),
        ServerFault(
            "incarnations-not-told-apart",
            "the numbers of a client that comes back are taken for those of the process before",
            [(ClientMemory, "find", _found_by_name)],
        ),
        ServerFault(
            "sessions-share-numbers",
            "a process that joins its run again goes on with the numbers that servers remember",
            cluster=_one_name_for_all_sessions,
        ),
        ServerFault(
            "dead-client-forgotten",
            "the numbers of a process are forgotten when the next one of its name pushes",
            [(ClientMemory, "find", _forgets_the_dead)],
        ),
        ServerFault(
            "no-reconciliation",
            "a new primary serves what it has",
            [(Takeover, "done", property(lambda self: self.held.whole))],
            _lags,
        ),
        ServerFault(
            "learner-counts-early",
            "a learner becomes a member when it has begun",
            [(ReplicaGroup, "begun", _learner_counts_at_once)],
        ),
        ServerFault(
            "restart-resumes",
            "a process takes up the place that its name has",
            [(JobReplicas, "_first", _always_first)],
        ),
        ServerFault(
            "old-copy-removed-first",
            "a move takes the old copy away before the new one is in sync",
            [(core_proposals, "plan", _remove_first)],
        ),
        ServerFault(
            "hosts-ignored",
            "copies are placed and moved as if each server were on a machine of its own",
            [(Situation, "domain", _each_fails_alone)],
            _two_hosts,
        ),
        ServerFault("durable-before-synced", "a group counts as durable when it is begun", cluster=_not_synced),
        ServerFault(
            "piece-dropped",
            "a part that could not be applied on its way is not kept",
            [(ArrivingPush, "taken", _taken_if_anything_was)],
        ),
        ServerFault(
            "rest-answered-early",
            "a push of which some parts were applied on the way is answered as if all had been",
            [(ServerCore, "push", _answered_as_it_was_begun)],
        ),
        ServerFault(
            "torn-pull", "a batch writes over values that are being sent", [(Batch, "__init__", _always_in_place)]
        ),
    )
}

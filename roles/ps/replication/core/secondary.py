"""Answers other servers that ship states to this one or take a bucket over (pure).

States are accepted and reported only at exactly the epoch at which this server knows the bucket to be. An older epoch
is a deposed primary's. A newer one must wait until this server has read the records and knows its own part in the
bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adamctl.roles.ps.core.acknowledge import CopyWaiter
from adamctl.roles.ps.core.instructions import Holds, Refresh, Refuse, Reply
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.shard_message import HEAD_BYTES, CopyRecord
from adamctl.roles.ps.replication.core.held_bucket import HeldCopy, HeldShard
from adamctl.roles.ps.replication.core.job_buckets import JobReplicas
from adamctl.roles.ps.replication.core.outbox import Outbox
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ReplicaFetchReply,
    ReplicaFetchRequest,
    ReplicaPrepareReply,
    ReplicaPrepareRequest,
    ReplicaStateReply,
    ReplicaStateRequest,
)


class Replies:
    """Answers the requests of other servers about one job."""

    def __init__(self, outbox: Outbox, copies: JobReplicas) -> None:
        self._outbox, self._copies = outbox, copies

    def _code(self, bucket: int, epoch: int) -> int:
        """Returns 0 if a request for a bucket's copy here may be carried out, else an error code."""
        known = self._copies.known.get(bucket)
        if known is None:
            return ErrorCode.NOT_READY
        if epoch < known.record.epoch:
            return ErrorCode.STALE_EPOCH
        if epoch > known.record.epoch:
            self._outbox.emit(Refresh(self._copies.job.name))
            return ErrorCode.NEWER_EPOCH
        if bucket in self._copies.building or bucket in self._copies.loading:
            given_up = self._copies.job.failed is not None
            return ErrorCode.UNKNOWN_SHARD if given_up else ErrorCode.NOT_READY
        return 0 if bucket in self._copies.copies else ErrorCode.UNKNOWN_SHARD

    def _epoch(self, bucket: int) -> int:
        known = self._copies.known.get(bucket)
        return known.record.epoch if known is not None else 0

    # --- states from a primary --------------------------------------------------------------------------------------

    def prepare(
        self, token: Token, peer: str, message: ReplicaPrepareRequest, records: Sequence[CopyRecord], now: float
    ) -> None:
        if message.receiver != self._outbox.incarnation:
            refused = dict.fromkeys(message.epochs, int(ErrorCode.STALE_INCARNATION))
            self._outbox.emit(Reply(token, ReplicaPrepareReply(self._outbox.incarnation, refused, {}, True)))
            return
        self._copies.heard_s[peer] = now
        refused = {}
        for bucket, epoch in message.epochs.items():
            if bucket in message.begins:
                self._begin(bucket, epoch, message.begins[bucket], peer)
            code = self._code(bucket, epoch)
            if not code and self._copies.known[bucket].record.primary != peer:
                code = ErrorCode.UNKNOWN_SHARD
            if not code and self._copies.durable and self._outbox.core.flush is None:
                code = ErrorCode.UNKNOWN_SHARD  # without a store nothing can be durable
            if code:
                refused[bucket] = int(code)
            elif message.serves:
                self._copies.copies[bucket].stored = False
        waiter = CopyWaiter(None)
        self._take(message, records, refused, waiter)
        if message.durable and not records:
            self._sync([bucket for bucket in message.epochs if bucket not in refused], waiter)
        routing = {bucket: self._epoch(bucket) for bucket, code in refused.items() if code == ErrorCode.STALE_EPOCH}
        self._answer(Reply(token, ReplicaPrepareReply(self._outbox.incarnation, refused, routing, True)), waiter)

    def _answer(self, reply: Reply, waiter: CopyWaiter) -> None:
        """Answers at once, or when what `waiter` waits for is durable."""
        if waiter.missing:
            waiter.token = reply
        else:
            self._outbox.emit(reply)

    def _sync(self, buckets: Iterable[int], waiter: CopyWaiter) -> None:
        """Waits until copies are on disk; skips that if the disk is full and durability was not promised."""
        flush = self._outbox.core.flush
        may_skip = flush is not None and flush.full and not self._copies.durable
        for bucket in buckets:
            shards = self._copies.copies[bucket].shards.values()
            self._wait(waiter, (shard for shard in shards if not may_skip or shard.initial_values_volatile))

    def _wait(self, waiter: CopyWaiter, shards: Iterable[HeldShard]) -> None:
        flush = self._outbox.core.flush
        for shard in shards if flush is not None else ():
            if shard.entry is not None and flush is not None:
                flush.wait(waiter, shard.entry, shard.entry.changes)

    def _begin(self, bucket: int, epoch: int, number: int, peer: str) -> None:
        """Starts an empty copy as a learner, unless one was started with this number or a later one."""
        known, copies = self._copies.known.get(bucket), self._copies
        if known is None or epoch != known.record.epoch or peer != known.record.primary:
            return
        held = copies.copies.get(bucket)
        if self._outbox.node not in known.record.learners or (held is not None and held.begun >= (epoch, number)):
            return
        described = copies.job.layout.buckets[bucket]
        copies.copies[bucket] = begun = HeldCopy(copies.job, described, (epoch, number), False)
        if held is not None:
            self._hand_over(held, begun)
        self._outbox.emit(Holds(copies.job.name, bucket, epoch, False))

    def _hand_over(self, old: HeldCopy, new: HeldCopy) -> None:
        """Keeps old records on disk until the new states are there: they are all there is if the others are lost."""
        waiters = []
        for index, shard in old.shards.items():
            entry, shard.entry = shard.entry, None
            new.shards[index].entry = entry
            if entry is None:
                continue
            waiters += [waiter for _, waiter in entry.waiting]
            entry.waiting = []
            if entry.changes == entry.durable and not entry.flying:
                entry.owner = None  # the record has the newest state, so memory can be freed
        acknowledgements = self._outbox.core.acknowledgements
        if waiters and acknowledgements is not None:
            self._outbox.emit(*acknowledgements.fail_waiters(waiters, ErrorCode.NOT_READY, "the copy was started over"))

    def _take(
        self,
        message: ReplicaPrepareRequest,
        records: Sequence[CopyRecord],
        refused: dict[int, int],
        waiter: CopyWaiter,
    ) -> None:
        bucket_of = self._copies.job.layout.bucket_of_shard
        taken: list[HeldShard] = []
        for record in records:
            index = record.copy.shard
            bucket = bucket_of[index] if 0 <= index < len(bucket_of) else -1
            if bucket in refused or bucket not in message.epochs:
                continue
            held = self._copies.copies[bucket]
            if not held.fits(record):
                refused[bucket] = int(ErrorCode.BAD_MESSAGE)
                continue
            if held.prepare(record):
                self._outbox.changed(held.shards[index].entry, record)
            taken.append(held.shards[index])
        self._wait(waiter, (shard for shard in taken if message.durable or shard.initial_values_volatile))

    # --- a new primary ----------------------------------------------------------------------------------------------

    def state(self, token: Token, message: ReplicaStateRequest) -> None:
        code = self._addressed(message.receiver) or self._code(message.bucket, message.epoch)
        epoch, incarnation = self._epoch(message.bucket), self._outbox.incarnation
        if code:
            self._outbox.emit(Reply(token, ReplicaStateReply(incarnation, int(code), epoch)))
            return
        held = self._copies.copies[message.bucket]
        waiter = CopyWaiter(None)
        self._wait(
            waiter, (shard for shard in held.shards.values() if self._copies.durable or shard.initial_values_volatile)
        )
        self._answer(Reply(token, ReplicaStateReply(incarnation, 0, epoch, held.versions(), held.stored)), waiter)

    def fetch(self, token: Token, message: ReplicaFetchRequest) -> None:
        code = self._addressed(message.receiver) or self._code(message.bucket, message.epoch)
        reply = ReplicaFetchReply(self._outbox.incarnation, int(code), self._epoch(message.bucket))
        if code:
            self._outbox.emit(Reply(token, reply))
            return
        held = self._copies.copies[message.bucket]
        records, filled = list[CopyRecord](), HEAD_BYTES
        for record in held.records(message.shards):  # as many as fit into one message; the peer asks again for the rest
            filled += record.size_bytes
            if records and filled > self._outbox.config.message_bytes_max:
                break
            records.append(record)
        images = [image for record in records if (image := held.image(record.copy.shard)) is not None]
        self._outbox.emit(Reply(token, reply, records, images))

    def _addressed(self, receiver: int) -> int:
        return 0 if receiver == self._outbox.incarnation else ErrorCode.STALE_INCARNATION


def refuse_unknown(outbox: Outbox, token: Token, job: str, why: str) -> None:
    """Refuses a request about a job that this server does not know, or not in that version; the peer retries."""
    outbox.emit(Refuse(token, ErrorCode.NOT_READY, f"job {job!r}: {why}"))

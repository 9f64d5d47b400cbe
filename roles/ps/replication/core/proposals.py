"""Decides which changes of a job's records this server proposes, and handles their outcomes (pure).

Every change is conditional on the bucket's record and on this server's own node key, so that a process that counts as
dead or has been restarted changes nothing. At most one change per bucket is in progress. Removals of lost members and
promotions of ready learners follow from what this server observed, takeovers from the primary's node key, everything
else from the plan (`placement.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from adamctl.config.records import BucketRecord, bucket_key, encode, node_key
from adamctl.model.layout import ELEMENT_BYTES, bucket_ranges
from adamctl.roles.ps.core.instructions import Notice, Propose, Refresh
from adamctl.roles.ps.replication.core.bucket_group import ReplicaGroup
from adamctl.roles.ps.replication.core.job_buckets import JobReplicas, VersionedRecord
from adamctl.roles.ps.replication.core.outbox import Outbox
from adamctl.roles.ps.replication.core.placement import (
    AddLearner,
    DomainsTold,
    HandOver,
    RemoveMember,
    Situation,
    Step,
    plan,
    takeover_rank,
)
from adamctl.roles.ps.replication.core.replica_link import HAS_NONE, SILENT
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply

CLOSING_S_MAX_LEASES = 2.0
CHANGES_MAX = 64
"""Buckets in one compare-and-set."""


@dataclass(frozen=True, slots=True)
class Change:
    """One bucket's new record, and the keys that must still have the given revisions."""

    bucket: int
    record: BucketRecord
    conditions: dict[str, int]


class Proposals:
    """The changes of one job's records. Changes due at the same time go into one compare-and-set.

    Attributes:
        pending: order -> the proposed changes.
        backed_off: server -> (incarnation, time until which it gets no learner).
    """

    def __init__(self, outbox: Outbox, copies: JobReplicas) -> None:
        self._outbox, self._copies = outbox, copies
        self.pending: dict[int, list[Change]] = {}
        self.backed_off: dict[str, tuple[int, float]] = {}
        self._busy: set[int] = set()
        self._due: list[Change] = []
        self._retry_s: dict[int, float] = {}
        self._dead_since_s: dict[int, tuple[int, float]] = {}  # bucket -> (its record's revision, time)
        self._closed_s: dict[int, float] = {}
        self._reopened_s: dict[int, float] = {}
        self._unsure: dict[int, int] = {}  # bucket -> its record's revision when an answer was lost
        self.plan_s = float("-inf")
        self._domains = DomainsTold()

    # --- proposing --------------------------------------------------------------------------------------------------

    def _propose(self, bucket: int, record: BucketRecord, conditions: dict[str, int] | None = None) -> None:
        """Adds a change to those due.

        It is conditional on every server that stays in the record being the process that we know. The change makes the
        record newer than the node keys, so a process started meanwhile would wrongly count as holding a copy.
        """
        staying = {*record.in_sync, *record.learners} - {self._outbox.node}
        same = {node_key(node): self._outbox.revision_of(node) for node in staying if node in self._outbox.nodes}
        key = bucket_key(self._copies.job.name, bucket)
        demanded = {
            key: self._copies.known[bucket].revision,
            node_key(self._outbox.node): self._outbox.registered_revision,
        }
        self._busy.add(bucket)
        self._due.append(Change(bucket, record, {**same, **demanded, **(conditions or {})}))

    def _send(self) -> None:
        """Proposes all due changes together."""
        due, self._due = self._due, []
        name = self._copies.job.name
        for changes, together in put_together(name, due):
            order = self._outbox.next_order()
            self.pending[order] = changes
            self._outbox.emit(Propose(order, name, together, _reasons(changes)))

    def proposed(self, order: int, reply: ConfigCompareAndSetReply | None, now: float) -> bool:
        """Handles the answer to a proposal; returns whether it was one of this job's."""
        changes = self.pending.pop(order, None)
        if changes is None:
            return False
        name = self._copies.job.name
        self._busy -= {change.bucket for change in changes}
        if reply is not None and not reply.conflicts:
            for change in changes:
                self._copies.take(change.bucket, change.record, reply.revision, now)
            self.plan_s = min(self.plan_s, now)
            self._outbox.emit(Notice(name, changes[0].bucket, _reasons(changes)))
            return True
        for change in changes:
            if reply is None:
                self._retry_s[change.bucket] = now + 10 * self._outbox.config.retry_s
                self._unsure[change.bucket] = self._copies.known[change.bucket].revision
            elif not change.conditions.keys().isdisjoint(reply.conflicts):
                self._retry_s[change.bucket] = now + self._outbox.config.retry_s
        self._outbox.emit(Refresh(name))
        return True

    def followed(self, now: float) -> None:
        """Makes the plan due: records, servers or drains may have changed."""
        self.plan_s = now

    # --- changes from observations --------------------------------------------------------------------------------

    def review(self, now: float) -> None:
        """Proposes all changes that are due."""
        copies = self._copies
        for bucket in sorted({*copies.groups, *copies.abandoned, *copies.takeovers, *copies.copies}):
            known = copies.known[bucket]
            if bucket in self._busy or now < self._retry_s.get(bucket, now):
                continue
            if bucket in copies.groups:
                self._review_group(bucket, known, self._copies.groups[bucket], now)
            elif bucket in copies.abandoned:
                self._review_abandoned(bucket, known)
            elif bucket in copies.takeovers:
                self._review_takeover(bucket, known, now)
            elif bucket in copies.copies:
                self._review_copy(bucket, known, now)
        if now >= self.plan_s:
            self.plan_s = now + self._outbox.config.heartbeat_s
            self._plan(now)
        self._send()

    def _review_group(self, bucket: int, known: VersionedRecord, group: ReplicaGroup, now: float) -> None:
        copies = self._copies
        for member in group.members.values():
            if member.lost == SILENT and not group.can_spare(member):
                copies.links.keep(group, member)  # another member has been lost since
        lost = {member.node: member.lost for member in group.members.values() if member.lost}
        ready = [member.node for member in group.members.values() if member.ready and self._is_told(member.node)]
        if lost:
            self._remove(bucket, known, lost, now)
        elif ready:
            self._copies.flag(bucket)  # from now on it may be a member without this server knowing
            record = known.record
            learners = [node for node in record.learners if node not in ready]
            in_sync = [*self._in_sync(record), *ready]
            changed = record.changed(
                self._outbox.unix_s(), f"complete copy on {', '.join(ready)}", in_sync=in_sync, learners=learners
            )
            self._propose(bucket, changed)
        elif self._unsure.get(bucket) == known.revision:  # after this the earlier proposal can no longer succeed
            self._propose(bucket, known.record.changed(self._outbox.unix_s(), "the outcome of a change is unknown"))
        elif group.closing:
            self._review_closing(bucket, known, group, now)

    def _is_told(self, node: str) -> bool:
        """Returns whether everybody can know that a learner has the bucket, before it can be the only one that does.

        Else its next process would make the bucket as the job began (`JobView.never_served`).
        """
        return not self._copies.single or node in self._copies.view.served

    def _review_abandoned(self, bucket: int, known: VersionedRecord) -> None:
        """Gives a bucket that is damaged here to the first live member."""
        others = [node for node in known.members[1:] if node in self._outbox.nodes]
        if others:
            in_sync = [node for node in self._in_sync(known.record) if node != self._outbox.node]
            why = f"damaged on {self._outbox.node}"
            self._propose(bucket, known.record.changed(self._outbox.unix_s(), why, primary=others[0], in_sync=in_sync))

    # --- handing over -----------------------------------------------------------------------------------------------

    def _review_closing(self, bucket: int, known: VersionedRecord, group: ReplicaGroup, now: float) -> None:
        """Hands a bucket over once no changes are in progress; resumes serving it if that takes too long."""
        target = group.members.get(group.closing)
        in_sync = self._in_sync(known.record)
        if target is None or group.closing not in in_sync:
            self._reopen(group, now)
        elif group.quiet:
            order = [group.closing, *(node for node in in_sync if node != group.closing)]
            why = f"handed over by {self._outbox.node}"
            unix_s = self._outbox.unix_s()
            self._propose(bucket, known.record.changed(unix_s, why, primary=group.closing, in_sync=order))
        elif now - self._closed_s.get(bucket, now) > CLOSING_S_MAX_LEASES * self._outbox.config.lease_s:
            self._reopen(group, now)

    def _reopen(self, group: ReplicaGroup, now: float) -> None:
        group.closing = ""
        self._reopened_s[group.bucket] = now
        self._retry_s.pop(group.bucket, None)
        self._copies.flag(group.bucket)

    def _review_takeover(self, bucket: int, known: VersionedRecord, now: float) -> None:
        takeover = self._copies.takeovers[bucket]
        lost = {node: other.lost for node, other in takeover.others.items() if other.lost}
        if lost:
            self._remove(bucket, known, lost, now)
        elif takeover.told and takeover.outrun:
            why, epoch = "stores have states of later epochs", takeover.newest_epoch
            self._propose(bucket, known.record.changed(self._outbox.unix_s(), why, after_epoch=epoch))

    def _remove(self, bucket: int, known: VersionedRecord, lost: dict[str, str], now: float) -> None:
        """Removes lost members; those that are gone only if the configuration service agrees."""
        record = known.record
        conditions = {}
        for node, why in lost.items():
            if why == SILENT or (why == HAS_NONE and node in record.learners):  # it may lack memory
                self.backed_off[node] = (self._outbox.incarnation_of(node), now + self._outbox.config.back_off_s)
            if why == "it is gone":
                conditions[node_key(node)] = self._outbox.revision_of(node)
        changed = record.changed(
            self._outbox.unix_s(),
            "; ".join(f"{node} removed: {why}" for node, why in lost.items()),
            in_sync=[node for node in self._in_sync(record) if node not in lost],
            learners=[node for node in record.learners if node not in lost],
        )
        self._propose(bucket, changed, conditions)

    def _is_backed_off(self, node: str, now: float) -> bool:
        """Returns whether a server currently gets no learner; a restarted process counts as new."""
        incarnation, until_s = self.backed_off.get(node, (0, now))
        return now < until_s and incarnation == self._outbox.incarnation_of(node)

    def _in_sync(self, record: BucketRecord) -> list[str]:
        """Returns the in-sync members in order; a record may omit the primary if it is the only one."""
        return list(record.in_sync) if record.primary in record.in_sync else [record.primary, *record.in_sync]

    # --- taking over ------------------------------------------------------------------------------------------------

    def _review_copy(self, bucket: int, known: VersionedRecord, now: float) -> None:
        outbox, record = self._outbox, known.record
        held = self._copies.copies[bucket]
        if outbox.node not in (record.primary, *record.in_sync) or not held.complete:
            return
        if not outbox.registered_after(record.primary, known.revision):
            self._dead_since_s.pop(bucket, None)
            return
        if held.stored:
            self._review_stored(bucket, known, now)
            return
        living = [node for node in outbox.nodes if not outbox.registered_after(node, known.revision)]
        rank = takeover_rank(record, outbox.node, {*living, outbox.node})
        if rank is None or now < self._dead_s(bucket, known, now) + rank * outbox.config.beacon_s:
            return
        gone = [node for node in self._in_sync(record) if node != outbox.node and node not in living]
        conditions = {node_key(node): outbox.revision_of(node) for node in {*gone, record.primary}}
        changed = record.changed(
            outbox.unix_s(),
            f"{record.primary} is gone",
            primary=outbox.node,
            in_sync=[node for node in self._in_sync(record) if node not in gone and node != record.primary],
            learners=[node for node in record.learners if node in living],
        )
        self._propose(bucket, changed, conditions)

    def _dead_s(self, bucket: int, known: VersionedRecord, now: float) -> float:
        """Returns since when the record's primary is known to be gone."""
        revision, since_s = self._dead_since_s.get(bucket, (-1, now))
        if revision != known.revision:
            since_s = now
        self._dead_since_s[bucket] = (known.revision, since_s)
        return since_s

    def _review_stored(self, bucket: int, known: VersionedRecord, now: float) -> None:
        """Resumes a bucket that no server seems to have in memory: the first member starts when all are back.

        It waits long enough for any member that does have it in memory to take it over.
        """
        outbox, members = self._outbox, known.members
        if self._copies.job.failed is not None and self._copies.is_alone(known):
            return
        present = all(node in outbox.nodes for node in members)
        wait_s = (len(members) + 1 + members.index(outbox.node)) * outbox.config.beacon_s
        if self._copies.is_alone(known):
            wait_s = 0.0
        if not present:
            self._dead_since_s.pop(bucket, None)
        elif now >= self._dead_s(bucket, known, now) + wait_s:
            why = "no copy was left in memory; resumed from the stores"
            conditions = {node_key(known.record.primary): outbox.revision_of(known.record.primary)}
            epoch = max(shard.version[0] for shard in self._copies.copies[bucket].shards.values())
            changed = known.record.changed(  # the controllers may have lost their memory
                outbox.unix_s(), why, primary=outbox.node, in_sync=members, after_epoch=epoch
            )
            self._propose(bucket, changed, conditions)

    # --- the plan ---------------------------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """Starts the planned steps for the buckets served here."""
        copies, outbox = self._copies, self._outbox
        settings = copies.view.record
        moving = any(group.members for group in copies.groups.values())
        if not copies.job.buckets or (settings.replication == 1 and not moving and outbox.node not in outbox.draining):
            return
        served_bytes = copies.job.rule.served_bytes
        living = {
            node: view.record.capacity_bytes
            for node, view in outbox.nodes.items()
            if node == outbox.node or (view.record.can_keep(settings.acks) and not self._is_backed_off(node, now))
        }
        situation = Situation(
            copies.job.name,
            settings.replication,
            {b.index: b.size_bytes // ELEMENT_BYTES * served_bytes for b in copies.job.layout.buckets},
            {bucket: known.record for bucket, known in copies.known.items()},
            living,
            outbox.draining,
            outbox.settled(now) and settings.replication > 1,
            domain_of={node: view.record.fails_with for node, view in outbox.nodes.items()},
        )
        told = self._domains.changed(situation)
        if told:
            self._outbox.emit(Notice(situation.job, 0, told, warning=situation.domains_missing > 0))
        self._begin(plan(situation, outbox.node), now)

    def _begin(self, steps: Iterable[Step], now: float) -> None:
        for step in steps:
            bucket, known = step.bucket, self._copies.known[step.bucket]
            group = self._copies.groups.get(bucket)
            waits = now < self._retry_s.get(bucket, now)
            if bucket not in self._copies.job.buckets or bucket in self._busy or waits or (group and group.closing):
                continue
            if isinstance(step, HandOver):
                self._close(bucket, group, step.node, now)
            else:
                self._change(step, known)

    def _change(self, step: AddLearner | RemoveMember, known: VersionedRecord) -> None:
        record, unix_s = known.record, self._outbox.unix_s()
        in_sync, learners = self._in_sync(record), list(record.learners)
        conditions = {}
        if isinstance(step, AddLearner):
            conditions[node_key(step.node)] = self._outbox.revision_of(step.node)
            learners.append(step.node)
        else:
            in_sync = [node for node in in_sync if node != step.node]
            learners = [node for node in learners if node != step.node]
        why = f"{step.node}: {step.why}" if isinstance(step, AddLearner) else step.why
        changed = record.changed(unix_s, why, in_sync=in_sync, learners=learners)
        self._propose(step.bucket, changed, conditions)

    def _close(self, bucket: int, group: ReplicaGroup | None, node: str, now: float) -> None:
        """Stops accepting pushes, so that the bucket can be handed over."""
        reopened_s = self._reopened_s.get(bucket, float("-inf"))
        if group is not None and node in group.members and now - reopened_s >= self._outbox.config.lease_s:
            group.closing = node
            self._closed_s[bucket] = now
            self._copies.flag(bucket)
            self._review_closing(bucket, self._copies.known[bucket], group, now)

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline_s(self, now: float) -> float:
        """Returns when to review again."""
        config = self._outbox.config
        busy = self._busy
        due_s = self.plan_s if self._copies.job.buckets else float("inf")
        for bucket, retry_s in self._retry_s.items():
            if retry_s > now and bucket not in busy:
                due_s = min(due_s, retry_s)
        for bucket in self._dead_since_s:
            if bucket not in busy:
                due_s = min(due_s, now + config.beacon_s / 4)
        for group in self._copies.groups.values():
            if group.closing and group.bucket not in busy and self._retry_s.get(group.bucket, now) <= now:
                closed_s = self._closed_s.get(group.bucket, now)
                due_s = min(due_s, max(closed_s + CLOSING_S_MAX_LEASES * config.lease_s, now + config.retry_s))
        return max(due_s, now)


def put_together(job: str, changes: Sequence[Change]) -> Iterator[tuple[list[Change], ConfigChanges]]:
    """Yields groups of at most CHANGES_MAX changes, each with the compare-and-set that makes all of them or none."""
    for start in range(0, len(changes), CHANGES_MAX):
        some = list(changes[start : start + CHANGES_MAX])
        conditions: dict[str, int] = {}
        for change in some:
            conditions |= change.conditions
        yield some, ConfigChanges(conditions, {bucket_key(job, one.bucket): encode(one.record) for one in some})


def _reasons(changes: list[Change]) -> str:
    """Returns `bucket 1: why; buckets 3, 7-9: why`, or the like."""
    buckets_of: dict[str, list[int]] = {}
    for change in changes:
        buckets_of.setdefault(change.record.why, []).append(change.bucket)
    return "; ".join(f"{bucket_ranges(buckets)}: {why}" for why, buckets in buckets_of.items())

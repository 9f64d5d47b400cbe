"""Sends states of dirty shards, heartbeats, and fills for learners to one other server, for one job (pure).

At most one state of a shard is in flight. If the shard changes meanwhile, it is dirty again when the answer arrives. So
a hot shard costs one state per round trip, however often it is updated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from adamctl.roles.ps.core.instructions import Refresh
from adamctl.roles.ps.core.shard import Image
from adamctl.roles.ps.core.shard_message import HEAD_BYTES, CopyRecord, record_bytes
from adamctl.roles.ps.replication.core.bucket_group import Member, Part, ReplicaGroup, ShardReplica
from adamctl.roles.ps.replication.core.outbox import Outbox
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message, ReplicaPrepareReply, ReplicaPrepareRequest

DATA_DEADLINE_S = 20.0
"""Minimum deadline of messages with states; a server silent for `member_silent_s` is removed long before."""
HAS_NONE = "it holds no copy"
SILENT = "it does not answer"
HOLDS_NOTHING = frozenset({ErrorCode.UNKNOWN_SHARD, ErrorCode.STALE_INCARNATION, ErrorCode.BAD_MESSAGE})


@dataclass(slots=True)
class Flight:
    """A message in flight: its states with their counters, and the copies that it starts or syncs to disk."""

    parts: list[tuple[ShardReplica, int, Member]] = field(default_factory=list)
    begins: list[tuple[ReplicaGroup, Member]] = field(default_factory=list)
    syncs: list[tuple[ReplicaGroup, Member]] = field(default_factory=list)


class Link:
    """A primary's link to one process that holds copies of its buckets of one job.

    Attributes:
        members: bucket -> its group and the copy there.
        dirty: shards whose newest state must be sent.
        fill: shards that learners never had; sent at a limited rate.
        flying: shard -> order of the message that contains its state.
        takes_changes: it supports records with only the changes to the clients' memory.
        quiet_since_s: since when it has owed an answer; None if it owes none.
    """

    def __init__(self, outbox: Outbox, job: str, born: int, durable: bool, node: str, incarnation: int) -> None:
        self._outbox, self._job, self._born, self._durable = outbox, job, born, durable
        self.node, self.incarnation = node, incarnation
        self.members: dict[int, tuple[ReplicaGroup, Member]] = {}
        self.dirty: dict[ShardReplica, None] = {}
        self.fill: dict[ShardReplica, None] = {}
        self.flying: dict[ShardReplica, int] = {}
        self.flights: dict[int, Flight] = {}
        self.takes_changes = False
        self.quiet_since_s: float | None = None
        self.sent_s = self.retry_s = float("-inf")

    # --- copies at the other end ------------------------------------------------------------------------------------

    def add(self, group: ReplicaGroup, member: Member, known: dict[int, int] | None = None) -> None:
        """Adds a copy kept there. `known`: shard -> the counter it has; older shards are sent."""
        self.members[group.bucket] = (group, member)
        for replica in group.shards.values() if member.begun else ():
            counter = replica.shard.counter if known is None else known.get(replica.shard.index, -1)
            replica.prepared[member.node] = counter
            if counter < replica.shard.counter:
                self.dirty[replica] = None

    def remove(self, group: ReplicaGroup) -> None:
        """Removes a bucket of which no copy is kept there any more."""
        self.members.pop(group.bucket, None)
        for replica in group.shards.values():
            self.dirty.pop(replica, None)
            self.fill.pop(replica, None)
            self.flying.pop(replica, None)

    def changed(self, replica: ShardReplica) -> None:
        """Notes that a shard has a new state."""
        if replica not in self.flying and replica not in self.fill:
            self.dirty[replica] = None

    # --- sending ----------------------------------------------------------------------------------------------------

    def ship(self, now: float) -> None:
        """Sends states while there are any and the limit of messages in flight allows it."""
        if now < self.retry_s:
            return
        while self._room and (self.dirty or (self.fill and self._outbox.fill_bytes > 0)):
            if not self._send_states(now):
                return

    def _send_states(self, now: float) -> bool:
        """Sends one message of states; returns False if none can be sent now."""
        flight, records, images = Flight(), list[CopyRecord](), list[Image]()
        filled, epochs = HEAD_BYTES, {}
        while replica := self._next(filled, not records):
            record, image = replica.record(self._since(replica))
            group, member = self.members[replica.group.bucket]
            flight.parts.append((replica, record.copy.counter, member))
            epochs[group.bucket] = group.epoch
            records.append(record)
            images.append(image)
            filled += record.size_bytes
        if not records:
            return False
        order = self._send(flight, epochs, {}, records, images, now)
        for replica, _, _ in flight.parts:
            self.flying[replica] = order
        return True

    def _since(self, replica: ShardReplica) -> int:
        """Returns the counter that a shard's copy there certainly has; -1 if the whole memory must be sent."""
        return replica.prepared.get(self.node, -1) if self.takes_changes else -1

    def _next(self, filled: int, first: bool) -> ShardReplica | None:
        """Removes and returns the next shard for a message of `filled` bytes; None if the message is complete."""
        for waiting in (self.dirty, self.fill):
            while waiting and (waiting is self.dirty or self._outbox.fill_bytes > 0):
                replica = next(iter(waiting))
                if replica.changing:  # when its batch is done it is dirty again
                    del waiting[replica]
                    continue
                size_bytes = record_bytes(*replica.describe(self._since(replica)))
                if not first and filled + size_bytes > self._outbox.config.message_bytes_max:
                    return None
                del waiting[replica]
                if waiting is self.fill:
                    self._outbox.fill_bytes -= size_bytes
                return replica
        return None

    def tick(self, now: float) -> None:
        """Starts and completes learners' copies, and sends a heartbeat if nothing was sent recently."""
        if now < self.retry_s:
            return
        for group, member in self.members.values():
            if not member.begun and not member.beginning:
                self._begin(group, member, now)
            elif member.full and not member.synced and not member.syncing:
                self._sync(group, member, now)
        self.ship(now)
        if now - self.sent_s >= self._outbox.config.heartbeat_s:
            epochs = {bucket: group.epoch for bucket, (group, member) in self.members.items() if member.begun}
            self._send(Flight(), epochs, {}, (), (), now)

    def _begin(self, group: ReplicaGroup, member: Member, now: float) -> None:
        """Makes a learner start an empty copy; nothing else is sent for it before it has confirmed that."""
        member.beginning = True
        number = self._outbox.next_order()
        self._send(Flight(begins=[(group, member)]), {group.bucket: group.epoch}, {group.bucket: number}, (), (), now)

    def _sync(self, group: ReplicaGroup, member: Member, now: float) -> None:
        """Makes a learner write its whole copy to its disk."""
        member.syncing = True
        self._send(Flight(syncs=[(group, member)]), {group.bucket: group.epoch}, {}, (), (), now)

    def _send(
        self,
        flight: Flight,
        epochs: dict[int, int],
        begins: dict[int, int],
        records: Sequence[CopyRecord],
        images: Sequence[Image],
        now: float,
    ) -> int:
        durable = (self._durable and bool(records)) or bool(flight.syncs)
        message = ReplicaPrepareRequest(self._job, self._born, self.incarnation, epochs, begins, durable, True)
        long = bool(records or flight.syncs)
        deadline_s = max(DATA_DEADLINE_S, 4 * self._outbox.config.member_silent_s) if long else None
        order = self._outbox.ask(self, self.node, message, records, images, deadline_s)
        self.flights[order] = flight
        self.sent_s = now
        if self.quiet_since_s is None:
            self.quiet_since_s = now
        return order

    # --- answers ----------------------------------------------------------------------------------------------------

    def answered(self, order: int, message: Message, records: Sequence[CopyRecord], now: float) -> None:
        flight = self.flights.pop(order)
        self._heard(now)
        if not isinstance(message, ReplicaPrepareReply):
            return self._again(order, flight, now)
        self.takes_changes = message.takes_changes
        wrong = message.incarnation != self.incarnation
        refused = dict.fromkeys(self.members, int(ErrorCode.STALE_INCARNATION)) if wrong else message.refused
        for bucket, code in refused.items():
            self._refused(bucket, code, message.routing.get(bucket, 0), now)
        for group, member in flight.begins:
            member.beginning = False
            if self._current(group, member) and group.bucket not in refused:
                group.begun(member)
                self._outbox.needs_review = True
                self.fill.update(dict.fromkeys(group.shards.values()))
        for group, member in flight.syncs:
            member.syncing = False
            if self._current(group, member) and group.bucket not in refused:
                member.synced = self._outbox.needs_review = True
        for replica, counter, member in flight.parts:
            if self.flying.get(replica) != order:
                continue
            del self.flying[replica]
            group = replica.group
            if not self._current(group, member):
                continue
            kept = group.bucket not in refused
            if kept:
                group.prepared(member, replica, counter, self._outbox.over)
                if member.part is Part.COUNTED or group.closing:
                    self._outbox.needs_review = True
            if not kept or replica.shard.counter != counter:
                self.dirty[replica] = None
        self.ship(now)

    def failed(self, order: int, lives: bool, why: str, now: float) -> None:
        flight = self.flights.pop(order)
        if lives:
            self._heard(now)
        self._again(order, flight, now)

    def _heard(self, now: float) -> None:
        self.quiet_since_s = now if self.flights else None

    def _again(self, order: int, flight: Flight, now: float) -> None:
        """Schedules a failed message's content to be sent again after a pause."""
        self.retry_s = now + self._outbox.config.retry_s
        for _, member in flight.begins:
            member.beginning = False
        for _, member in flight.syncs:
            member.syncing = False
        for replica, _, member in flight.parts:
            if self.flying.get(replica) == order:
                del self.flying[replica]
                if self._current(replica.group, member):
                    self.dirty[replica] = None

    def _current(self, group: ReplicaGroup, member: Member) -> bool:
        found = self.members.get(group.bucket)
        return found is not None and found[0] is group and found[1] is member and not group.gone

    def _refused(self, bucket: int, code: int, routing: int, now: float) -> None:
        found = self.members.get(bucket)
        if found is None:
            return
        group, member = found
        self.retry_s = now + self._outbox.config.retry_s
        if code in HOLDS_NOTHING:
            gone = code == ErrorCode.STALE_INCARNATION
            member.lost = member.lost or ("its process is gone" if gone else HAS_NONE)
            self._outbox.needs_review = True
        elif code == ErrorCode.STALE_EPOCH and routing > group.epoch:
            self._outbox.emit(Refresh(self._job))

    # --- silence ----------------------------------------------------------------------------------------------------

    def awoke(self, now: float) -> None:
        """Restarts the silence timeout, because this process itself did not run for a while."""
        if self.quiet_since_s is not None:
            self.quiet_since_s = now

    def judge(self, now: float) -> None:
        """Marks members as lost that have been silent for too long or whose process is gone."""
        silent = self._outbox.is_silent(self.quiet_since_s, now)
        for group, member in self.members.values():
            if self._outbox.incarnation_of(self.node) != self.incarnation:
                member.lost = member.lost or "its process is gone"
            elif silent and group.can_spare(member):
                member.lost = member.lost or SILENT

    def next_deadline_s(self, now: float) -> float:
        """Returns when there is something to do next, other than handling answers."""
        due_s = max(self.sent_s + self._outbox.config.heartbeat_s, self.retry_s)
        if self.quiet_since_s is not None and any(not member.lost for _, member in self.members.values()):
            due_s = min(due_s, self._outbox.silence_due_s(self.quiet_since_s, now))
        if any(
            not (member.begun or member.beginning) or (member.full and not (member.synced or member.syncing))
            for _, member in self.members.values()
        ):
            due_s = min(due_s, self.retry_s)
        if self._room and self.dirty:
            due_s = min(due_s, self.retry_s)
        elif self._room and self.fill:
            due_s = min(due_s, max(self.retry_s, now + self._outbox.fill_wait_s))
        return max(due_s, now)

    @property
    def _room(self) -> bool:
        """Whether another message with states may be sent."""
        return sum(1 for flight in self.flights.values() if flight.parts) < self._outbox.config.flights_max


class Links:
    """All links of one job, by the process that each leads to."""

    def __init__(self, outbox: Outbox, job: str, born: int) -> None:
        self._outbox, self._job, self._born = outbox, job, born
        self._links: dict[tuple[str, int], Link] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def to(self, member: Member, durable: bool) -> Link:
        """Returns what leads to the process that holds a copy."""
        key = (member.node, member.incarnation)
        if key not in self._links:
            self._links[key] = Link(self._outbox, self._job, self._born, durable, *key)
        return self._links[key]

    def of(self, group: ReplicaGroup) -> list[Link]:
        """Returns what leads to the copies of a bucket that take states."""
        found = (self._links.get((m.node, m.incarnation)) for m in group.members.values() if m.begun and not m.lost)
        return [link for link in found if link is not None]

    def keep(self, group: ReplicaGroup, member: Member) -> None:
        """Goes on with a member that counted as lost: it is sent what has changed meanwhile."""
        member.lost = ""
        link = self._links.get((member.node, member.incarnation))
        for replica in group.shards.values():
            if link is not None and replica.prepared.get(member.node, -1) < replica.shard.counter:
                link.changed(replica)

    def remove(self, group: ReplicaGroup, member: Member) -> None:
        """Sends nothing more of a bucket to a member."""
        link = self._links.get((member.node, member.incarnation))
        if link is not None:
            link.remove(group)

    def remove_group(self, group: ReplicaGroup) -> None:
        """Sends nothing more of a bucket to anybody."""
        for link in self._links.values():
            link.remove(group)

    def forget_unused(self) -> None:
        """Drops links that lead to no copy any more; late answers find nothing of theirs."""
        for key in [key for key, link in self._links.items() if not link.members]:
            del self._links[key]

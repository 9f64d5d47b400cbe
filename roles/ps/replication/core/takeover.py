"""How a new primary makes a bucket consistent before it serves it (pure).

Shard states cannot be undone, so states that the old primary had sent to only some members are kept: the highest
version of each shard that any in-sync member has is written to all of them under the new epoch. An unacknowledged push
may survive that; exactly-once makes its retry harmless. Three rounds:

    ask     which versions each other member has; from then on members accept nothing of an older epoch
    fetch   what is newer elsewhere than here
    write   what is older elsewhere than here, under the new epoch

A member that does not answer or holds nothing is given up: its removal is proposed. What only that member had was never
acknowledged. The resulting change of the record starts a new takeover, which asks again.

This does not hold if no copy was left in memory and the bucket is resumed from the members' stores: any of them may
have the highest durable version. Then no member is given up, and missing ones are waited for (`patient`).

After a restore of the configuration, stores may have states of this epoch or of later ones (`outrun`). Then the record
gets a later epoch first: members would ignore what this one ships as older than what they have, and say that they have
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from adamctl.config.records import NUMBER_MAX
from adamctl.roles.ps.core.instructions import Refresh
from adamctl.roles.ps.core.shard_message import HEAD_BYTES, CopyRecord
from adamctl.roles.ps.replication.core.held_bucket import NOTHING, HeldCopy
from adamctl.roles.ps.replication.core.outbox import Outbox
from adamctl.roles.ps.replication.core.replica_link import HAS_NONE, SILENT
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Message,
    ReplicaFetchReply,
    ReplicaFetchRequest,
    ReplicaPrepareReply,
    ReplicaPrepareRequest,
    ReplicaStateReply,
    ReplicaStateRequest,
)

Version = tuple[int, int]
WAITS = frozenset({ErrorCode.NEWER_EPOCH, ErrorCode.NOT_READY})


@dataclass(slots=True)
class Other:
    """Another in-sync member, as a new primary sees it.

    Attributes:
        versions: of its shards, None before it has reported them.
        order: of the request in progress, 0 if none.
        part: the shards in that request.
        since_s: since when it has owed an answer; None if it owes none.
        lost: why it is given up; empty if it is not.
    """

    incarnation: int
    versions: dict[int, Version] | None = None
    order: int = 0
    part: list[tuple[int, Version]] = field(default_factory=list)
    since_s: float | None = None
    retry_s: float = float("-inf")
    lost: str = ""


class Takeover:
    """A bucket being taken over at one epoch. `done`: every member has the same state of every shard.

    Attributes:
        held: this server's own copy, which gets the highest versions.
        patient: no member is given up.
        others: the other in-sync members.
        newest_epoch: the highest of any state that was found, here or elsewhere.
    """

    def __init__(
        self, outbox: Outbox, born: int, held: HeldCopy, epoch: int, others: dict[str, int], durable: bool
    ) -> None:
        """`others`: server -> incarnation of the process that the record refers to, 0 if that is gone."""
        self._outbox, self._born, self.held, self.epoch, self._durable = outbox, born, held, epoch, durable
        self.others = {node: Other(incarnation) for node, incarnation in others.items()}
        self.patient = held.stored
        self.newest_epoch = max((shard.version[0] for shard in held.shards.values()), default=0)
        for other in self.others.values():
            if not other.incarnation and not self.patient:
                other.lost = "it is gone"

    @property
    def bucket(self) -> int:
        return self.held.bucket.index

    @property
    def told(self) -> bool:
        """Whether all members have said what they have."""
        return all(other.versions is not None for other in self.others.values())

    @property
    def outrun(self) -> bool:
        """Whether a state is not older than this epoch, under which therefore nothing may be served."""
        return self.newest_epoch >= self.epoch

    @property
    def done(self) -> bool:
        idle = all(not other.lost and not other.order for other in self.others.values())
        return idle and not self.outrun and not self._left()

    def _left(self) -> bool:
        """Returns whether anything is still to be asked, fetched or written."""
        if not self.told or not self.held.whole:
            return True
        return any(self._higher(other) or self._lower(other) for other in self.others.values())

    def _higher(self, other: Other) -> list[tuple[int, Version]]:
        """Returns shards of which a member has the highest version of all, newer than ours."""
        assert other.versions is not None
        found = []
        for index, version in other.versions.items():
            shard = self.held.shards.get(index)
            if shard is not None and version > shard.version and version == self._best(index):
                found.append((index, version))
        return found

    def _best(self, index: int) -> Version:
        told = (other.versions.get(index, NOTHING) for other in self.others.values() if other.versions is not None)
        return max(told, default=NOTHING)

    def _lower(self, other: Other) -> list[tuple[int, Version]]:
        """Returns shards of which our version is newer than a member's."""
        assert other.versions is not None
        versions = other.versions
        return [
            (index, shard.version)
            for index, shard in self.held.shards.items()
            if shard.copy is not None and versions.get(index, NOTHING) < shard.version
        ]

    # --- requests ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Sends the next request to each member without a request in progress."""
        told = self.told and not self.outrun
        fetched = told and not any(self._higher(other) for other in self.others.values())
        for node, other in self.others.items():
            if other.order or other.lost or not other.incarnation or now < other.retry_s:
                continue
            if other.versions is None:
                self._ask(node, other, now)
            elif told and not fetched:
                self._fetch(node, other, now)
            elif fetched:
                self._write(node, other, now)

    def _ask(self, node: str, other: Other, now: float) -> None:
        name = self.held.job.name
        self._send(
            node, other, ReplicaStateRequest(name, self._born, other.incarnation, self.bucket, self.epoch), (), now
        )

    def _fetch(self, node: str, other: Other, now: float) -> None:
        other.part = self._cut(self._higher(other))
        if other.part:
            shards = tuple(index for index, _ in other.part)
            name = self.held.job.name
            request = ReplicaFetchRequest(name, self._born, other.incarnation, self.bucket, self.epoch, shards)
            self._send(node, other, request, (), now)

    def _write(self, node: str, other: Other, now: float) -> None:
        """Writes shards under the new epoch, to which it first raises our own copies of them."""
        part = self._cut(self._lower(other))
        if not part:
            return
        for record in self.held.records(index for index, _ in part):
            if record.copy.epoch < self.epoch:
                shard = self.held.shards[record.copy.shard]
                shard.copy = msgspec.structs.replace(record.copy, epoch=self.epoch)
        records = self.held.records(index for index, _ in part)
        other.part = [(index, self.held.shards[index].version) for index, _ in part]
        epochs = {self.bucket: self.epoch}
        name = self.held.job.name
        request = ReplicaPrepareRequest(name, self._born, other.incarnation, epochs, {}, self._durable)
        self._send(node, other, request, records, now)

    def _cut(self, shards: list[tuple[int, Version]]) -> list[tuple[int, Version]]:
        """Returns as many shards as fit into one message."""
        filled = HEAD_BYTES
        for number, (index, _) in enumerate(shards):
            filled += self.held.shards[index].message_bytes
            if number and filled > self._outbox.config.message_bytes_max:
                return shards[:number]
        return shards

    def _send(self, node: str, other: Other, message: Message, records: Sequence[CopyRecord], now: float) -> None:
        other.order = self._outbox.ask(self, node, message, records)
        if other.since_s is None:
            other.since_s = now

    # --- answers ----------------------------------------------------------------------------------------------------

    def answered(self, order: int, message: Message, records: Sequence[CopyRecord], now: float) -> None:
        other = self._answerer(order)
        if other is None:
            return
        other.since_s = None
        code = self._code(message)
        if code:
            other.retry_s = now + self._outbox.config.retry_s
            if code == ErrorCode.STALE_EPOCH:
                self._outbox.emit(Refresh(self.held.job.name))
            elif code not in WAITS and not self.patient:
                other.lost = HAS_NONE
            return
        if isinstance(message, ReplicaStateReply):
            other.versions = {index: (epoch, counter) for index, epoch, counter in message.versions}
            told = max((epoch for epoch, _ in other.versions.values()), default=0)
            self.newest_epoch = max(self.newest_epoch, min(told, NUMBER_MAX - 1))
        elif isinstance(message, ReplicaFetchReply):
            self._fetched(other, records)
        elif other.versions is not None:
            other.versions |= dict(other.part)
        self.advance(now)

    def _code(self, message: Message) -> int:
        if isinstance(message, ReplicaPrepareReply):
            return message.refused.get(self.bucket, 0)
        return message.code if isinstance(message, ReplicaStateReply | ReplicaFetchReply) else ErrorCode.BAD_MESSAGE

    def _fetched(self, other: Other, records: Sequence[CopyRecord]) -> None:
        assert other.versions is not None
        for record in records:
            if self.held.fits(record) and self.held.prepare(record):
                self._outbox.changed(self.held.shards[record.copy.shard].entry)
        came = {record.copy.shard for record in records}
        told = max((place for place, (index, _) in enumerate(other.part) if index in came), default=len(other.part) - 1)
        for index, _ in other.part[: told + 1]:  # later ones did not fit and are requested again
            other.versions[index] = min(other.versions[index], self.held.shards[index].version)

    def _answerer(self, order: int) -> Other | None:
        other = next((other for other in self.others.values() if other.order == order), None)
        if other is not None:
            other.order = 0
        return other

    def failed(self, order: int, lives: bool, why: str, now: float) -> None:
        other = self._answerer(order)
        if other is not None:
            other.retry_s = now + self._outbox.config.retry_s
            if lives:
                other.since_s = None

    def awoke(self, now: float) -> None:
        for other in self.others.values():
            if other.since_s is not None:
                other.since_s = now

    def judge(self, now: float) -> None:
        """Gives up members that do not answer or whose process is gone."""
        if self.patient:
            return self._renew()
        for node, other in self.others.items():
            if self._outbox.incarnation_of(node) != other.incarnation:
                other.lost = other.lost or "its process is gone"
            elif self._outbox.is_silent(other.since_s, now):
                other.lost = other.lost or SILENT

    def _renew(self) -> None:
        """Starts over with members that have been restarted."""
        for node, other in self.others.items():
            incarnation = self._outbox.incarnation_of(node)
            if incarnation != other.incarnation:
                self.others[node] = Other(incarnation)

    @property
    def empty(self) -> bool:
        """Whether all members have reported and none of them has some shard."""
        missing = (index for index, shard in self.held.shards.items() if shard.copy is None)
        return self.told and any(self._best(index) == NOTHING for index in missing)

    def next_deadline_s(self, now: float) -> float:
        due_s = float("inf")
        for other in self.others.values():
            if other.lost or not other.incarnation:
                continue
            if not other.order and self._owes(other):
                due_s = min(due_s, other.retry_s)
            if other.since_s is not None and not self.patient:
                due_s = min(due_s, self._outbox.silence_due_s(other.since_s, now))
        return max(due_s, now)

    def _owes(self, other: Other) -> bool:
        """Returns whether a member can be sent a request now: nothing is written before everything is fetched."""
        if other.versions is None:
            return True
        if not self.told or self.outrun:
            return False
        fetched = not any(self._higher(one) for one in self.others.values())
        return bool(self._lower(other) if fetched else self._higher(other))

    def known(self, node: str) -> dict[int, int]:
        """Returns a member's counter of each shard, once the takeover is done."""
        versions = self.others[node].versions or {}
        return {index: counter for index, (_, counter) in versions.items()}

"""What one shard remembers about its clients, so that each push is applied at most once (pure).

Numbers of one client on one shard increase by one. The next number is accepted; a repeated one gets the outcome of the
first; a gap is refused and nothing is consumed. The memory is part of the shard's state: it is snapshotted with its
values, and a copy with an older version is sent what has changed since.

It is bounded in two ways. If there are too many clients, the least recently used is evicted and leaves a mark. And the
controllers say which incarnations ended so long ago that none of their messages can still be in flight: those are
retired, including their marks. Both happen when a batch completes, so that each version has exactly one memory.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

from adamctl.config.records import RetiredRecord

CLIENTS_MAX = 1024
MARKS_MAX = 4096
REFUSED_MAX = 64

ClientKey: TypeAlias = tuple[str, int]
"""(node, incarnation); the controllers issue incarnations in increasing order."""


NOBODY: Final = RetiredRecord()


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """One client in a snapshot: numbers up to `sequence` are done; those in `refused` (number -> code) were refused."""

    node: str
    incarnation: int
    sequence: int
    refused: dict[int, int] = {}


class MemoryRecord(msgspec.Struct, frozen=True, array_like=True):
    """A shard's memory in a snapshot, clients in eviction order: the most recently used is last.

    `step` is the last synchronous step that the values contain, 0 if none; `commit` a batch algorithm's last commit.
    `before` are those of `clients` and `evicted` that came from a checkpoint and have not pushed since.
    """

    clients: tuple[ClientRecord, ...] = ()
    evicted: tuple[ClientKey, ...] = ()
    evicted_incarnation: int = -1
    step: int = 0
    retired: RetiredRecord = NOBODY
    before: tuple[ClientKey, ...] = ()
    commit: int = 0


NO_CLIENTS: Final = MemoryRecord()


class MemoryChange(msgspec.Struct, frozen=True, array_like=True):
    """The difference between a memory and its former version, or any version in between.

    `clients` and `evicted` are those that changed, in order; `marks` is the total number of marks now, after the oldest
    were forgotten.
    """

    clients: tuple[ClientRecord, ...]
    evicted: tuple[ClientKey, ...]
    marks: int
    evicted_incarnation: int
    step: int
    commit: int = 0


class Verdict(Enum):
    """What a sequence number is."""

    NEXT = auto()
    DONE = auto()
    QUEUED = auto()
    GAP = auto()
    EVICTED = auto()


class Client:
    """One client of a shard.

    Attributes:
        accepted: the last number accepted, perhaps still queued.
        done: the last number applied or refused; done <= accepted.
        refused: numbers of which nothing was applied -> error code; only the last REFUSED_MAX are kept.
        changed: the shard's counter when a number of this client was last settled.
    """

    __slots__ = ("_record", "accepted", "changed", "done", "key", "refused")

    def __init__(self, key: ClientKey, done: int = 0, refused: dict[int, int] | None = None) -> None:
        self.key = key
        self.accepted = done
        self.done = done
        self.refused = refused
        self.changed = -1
        self._record: ClientRecord | None = None

    @property
    def idle(self) -> bool:
        """Whether the client has settled numbers and none queued."""
        return 0 < self.done == self.accepted

    def judge(self, sequence: int) -> Verdict:
        if sequence == self.accepted + 1:
            return Verdict.NEXT
        if sequence > self.accepted or sequence < 1:
            return Verdict.GAP
        return Verdict.DONE if sequence <= self.done else Verdict.QUEUED

    def settle(self, sequence: int, code: int, counter: int) -> None:
        """Notes that a number was applied, or refused if `code` is not 0."""
        self.changed, self._record = counter, None
        self.done = max(self.done, sequence)  # parts of one step from one client are settled together
        if not code:
            return
        if self.refused is None:
            self.refused = {}
        self.refused[sequence] = code
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

    def record(self) -> ClientRecord:
        """Returns the client's record; queued numbers are not in it."""
        if self._record is None:
            refused = {number: code for number, code in (self.refused or {}).items() if number <= self.done}
            self._record = ClientRecord(*self.key, self.done, refused)
        return self._record


class ClientMemory:
    """All clients of one shard.

    At most CLIENTS_MAX are remembered; beyond that the least recently used is evicted and leaves a mark. When a mark is
    forgotten, `evicted_incarnation` rises to its incarnation: unknown clients with an incarnation up to it count as
    evicted. Marks from before the job began do not raise it, as incarnations of another cluster say nothing about this
    one. Only clients without queued updates are evicted or retired.

    Attributes:
        clients: ordered by last use, the most recent last.
        retired: the retired record that the shard last applied; it applies one only when that removes a client or mark.
        step, commit: as in `MemoryRecord`.
    """

    __slots__ = ("_before", "_clients_max", "_evicted", "_looked", "_marks_max", "_whole_from", "clients",
                 "commit", "evicted_incarnation", "retired", "step")  # fmt: skip

    def __init__(self, clients_max: int = CLIENTS_MAX, marks_max: int = MARKS_MAX) -> None:
        self.clients: dict[ClientKey, Client] = {}
        self.evicted_incarnation = -1
        self.retired = self._looked = NOBODY
        self._before: tuple[ClientKey, ...] = ()
        self._evicted: dict[ClientKey, int] = {}  # -> the shard's counter at eviction; the oldest mark first
        self._whole_from = -1  # changes since an older counter are not known individually
        self._clients_max, self._marks_max = clients_max, marks_max
        self.step = self.commit = 0

    def find(self, key: ClientKey) -> Client | None:
        """Returns the client, a new one if it is unknown, or None if it was evicted or retired."""
        client = self.clients.get(key)
        if client is not None:
            return client
        if key[1] <= self.evicted_incarnation or key in self._evicted or self.retired.has(key[1]):
            return None
        return Client(key)

    def accept(self, client: Client, sequence: int) -> None:
        """Accepts a client's next number."""
        client.accepted = sequence
        self.clients.setdefault(client.key, client)

    def settle(self, client: Client, sequence: int, code: int, counter: int) -> None:
        """Notes a number's outcome, in the version with this counter; may evict another client."""
        client.settle(sequence, code, counter)
        self._leave_before((client.key,))
        if self.clients.pop(client.key, None) is None:
            return
        if len(self.clients) >= self._clients_max:
            idle = next((other.key for other in self.clients.values() if other.idle), None)
            if idle is not None:
                self._evict(idle, counter)
        self.clients[client.key] = client

    def _evict(self, key: ClientKey, counter: int) -> None:
        del self.clients[key]
        self._evicted[key] = counter
        if len(self._evicted) > self._marks_max:
            oldest = next(iter(self._evicted))
            self._whole_from = max(self._whole_from, self._evicted.pop(oldest))
            if oldest not in self._before:
                self.evicted_incarnation = max(self.evicted_incarnation, oldest[1])
            self._leave_before((oldest,))

    def _leave_before(self, keys: Collection[ClientKey]) -> None:
        """Removes clients from `_before`: they have pushed since the job began, or are forgotten."""
        if self._before and not set(keys).isdisjoint(self._before):
            self._before = tuple(key for key in self._before if key not in keys)

    def retire(self, retired: RetiredRecord, counter: int) -> bool:
        """Forgets retired clients and marks, in the version with this counter; returns whether there were any.

        From then on the shard itself knows that they may not come back, whichever server holds it.
        """
        if retired is self._looked:
            return False
        if retired.floor < self.retired.floor or any(self.retired.has(one) for one in retired.kept):
            self._looked = retired  # older than what the shard has applied
            return False
        over = [client for key, client in self.clients.items() if retired.has(key[1])]
        gone = [client.key for client in over if client.idle]
        if len(gone) == len(over):  # else again later, when none of their updates are queued
            self._looked = retired
        marks = [key for key in self._evicted if retired.has(key[1])]
        if not gone and not marks:
            return False
        for key in gone:
            del self.clients[key]
        for key in marks:
            del self._evicted[key]
        self._leave_before({*gone, *marks})
        self.retired, self._whole_from = retired, counter
        return True

    def sequence(self, key: ClientKey) -> int:
        """Returns a client's last number that the values contain (or that was refused), 0 if none."""
        client = self.clients.get(key)
        return 0 if client is None else client.done

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def record(self) -> MemoryRecord:
        """Returns the memory that belongs to the current values; queued numbers are not in it."""
        clients = tuple([client.record() for client in self.clients.values() if client.done])
        marks = tuple(self._evicted)
        numbers = self.evicted_incarnation, self.step
        return MemoryRecord(clients, marks, *numbers, self.retired, self._before, self.commit)

    def change(self, since: int) -> MemoryChange | None:
        """Returns the changes since the version with counter `since`; None if only the whole memory can be sent."""
        if since < self._whole_from:
            return None
        clients: list[ClientRecord] = []
        for client in reversed(self.clients.values()):
            if client.done:
                if client.changed <= since:
                    break
                clients.append(client.record())
        evicted: list[ClientKey] = []
        for key, counter in reversed(self._evicted.items()):
            if counter <= since:
                break
            evicted.append(key)
        marks = len(self._evicted)
        numbers = self.evicted_incarnation, self.step, self.commit
        return MemoryChange(tuple(clients[::-1]), tuple(evicted[::-1]), marks, *numbers)

    @classmethod
    def restored(cls, record: MemoryRecord) -> ClientMemory:
        memory = cls()
        for found in record.clients:
            key = (found.node, found.incarnation)
            memory.clients[key] = Client(key, found.sequence, dict(found.refused) or None)
        memory._evicted = dict.fromkeys(record.evicted, -1)
        memory.evicted_incarnation = record.evicted_incarnation
        memory.step, memory.commit = record.step, record.commit
        memory.retired = memory._looked = record.retired
        memory._before = record.before
        return memory

    def restart(self) -> None:
        """Prepares a memory from a checkpoint for a new job, which counts from 1, perhaps in another cluster.

        Incarnations start over there, so the old cluster's must not exclude anyone. Numbers stay: a client that
        attaches learns its own and continues after them.
        """
        self.step, self.commit, self.evicted_incarnation = 0, 0, -1
        self._evicted.clear()
        self._before = tuple(self.clients)
        self.retired = self._looked = NOBODY

    def take(self, change: MemoryChange) -> None:
        """Brings a copy's memory, at the change's base version or newer, to its primary's state."""
        for found in change.clients:
            key = (found.node, found.incarnation)
            self.clients.pop(key, None)
            self.clients[key] = Client(key, found.sequence, dict(found.refused) or None)
        for key in change.evicted:
            self.clients.pop(key, None)
            self._evicted.setdefault(key, -1)
        forgotten = tuple(self._evicted)[: max(len(self._evicted) - change.marks, 0)]
        for key in forgotten:
            del self._evicted[key]
        self._leave_before({*forgotten, *((found.node, found.incarnation) for found in change.clients)})
        self.evicted_incarnation, self.step, self.commit = change.evicted_incarnation, change.step, change.commit

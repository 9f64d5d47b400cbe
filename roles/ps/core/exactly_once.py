"""What one shard remembers of its clients, so that each push is applied at most once (pure).

Numbers of one client on one shard go up by one. The next one is accepted; a repeated one is answered as what became of
it; a gap is refused and nothing is consumed. The memory is part of the shard's state: it is snapshotted with the values
it belongs to, and a copy that has an older version is sent what has changed since.

It is bounded twice. Of too many clients the least recently used is evicted and leaves a mark. And the controllers say
which incarnations have been gone for so long that nothing of them can be on its way any more: those are retired, marks
and all. Both happen when a batch is done, so that a version has one memory.
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
"""(node, incarnation); incarnations are issued by the controllers, each greater than all before."""


NOBODY: Final = RetiredRecord()


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """One client in a snapshot: numbers up to `sequence` are done; those in `refused` (number -> code) on nothing."""

    node: str
    incarnation: int
    sequence: int
    refused: dict[int, int] = {}


class MemoryRecord(msgspec.Struct, frozen=True, array_like=True):
    """A shard's memory in a snapshot, clients in the order in which they would be evicted: the last one used last.

    `step` is the last step that all replicas took together which the values contain, 0 if there was none. `before` are
    those of `clients` and `evicted` that came with a checkpoint, and for whom nothing was done since.
    """

    clients: tuple[ClientRecord, ...] = ()
    evicted: tuple[ClientKey, ...] = ()
    evicted_incarnation: int = -1
    step: int = 0
    retired: RetiredRecord = NOBODY
    before: tuple[ClientKey, ...] = ()


NO_CLIENTS: Final = MemoryRecord()


class MemoryChange(msgspec.Struct, frozen=True, array_like=True):
    """What is different in a memory from what it was in a former version, or in any later one before this.

    `clients` and `evicted` are those that have changed, in order; `marks` is how many are evicted now, all together,
    the oldest having been forgotten.
    """

    clients: tuple[ClientRecord, ...]
    evicted: tuple[ClientKey, ...]
    marks: int
    evicted_incarnation: int
    step: int


class Verdict(Enum):
    """What to do with a number."""

    NEXT = auto()
    DONE = auto()
    QUEUED = auto()
    GAP = auto()
    EVICTED = auto()


class Client:
    """One client of a shard.

    Attributes:
        accepted: the last number taken, perhaps still queued.
        done: the last number applied or refused; done <= accepted.
        refused: numbers of which nothing was applied -> why; only the last REFUSED_MAX are kept.
        changed: the shard's counter when something was done for it last.
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
        """Says whether something is known of it and nothing of it is queued."""
        return 0 < self.done == self.accepted

    def judge(self, sequence: int) -> Verdict:
        if sequence == self.accepted + 1:
            return Verdict.NEXT
        if sequence > self.accepted or sequence < 1:
            return Verdict.GAP
        return Verdict.DONE if sequence <= self.done else Verdict.QUEUED

    def settle(self, sequence: int, code: int, counter: int) -> None:
        """Notes that a number is applied, or, with a code, was spent on nothing."""
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
        """Returns what is done."""
        if self._record is None:
            refused = {number: code for number, code in (self.refused or {}).items() if number <= self.done}
            self._record = ClientRecord(*self.key, self.done, refused)
        return self._record


class ClientMemory:
    """All clients of one shard.

    At most CLIENTS_MAX are remembered; the least recently used beyond that is evicted and leaves a mark. A mark
    forgotten in its turn raises `evicted_incarnation`: strangers with an incarnation up to it count as evicted. That of
    a client of before the job began does not: incarnations of another cluster say nothing about those of this one. Only
    clients without queued updates are evicted or retired.

    Attributes:
        clients: the one that something was done for last comes last.
        retired: as the shard has taken it in, which it does only when it forgets somebody.
        step: as in a record of it.
    """

    __slots__ = ("_before", "_clients_max", "_evicted", "_looked", "_marks_max", "_whole_from", "clients",
                 "evicted_incarnation", "retired", "step")  # fmt: skip

    def __init__(self, clients_max: int = CLIENTS_MAX, marks_max: int = MARKS_MAX) -> None:
        self.clients: dict[ClientKey, Client] = {}
        self.evicted_incarnation = -1
        self.retired = self._looked = NOBODY
        self._before: tuple[ClientKey, ...] = ()
        self._evicted: dict[ClientKey, int] = {}  # -> the shard's counter at that time; the oldest mark first
        self._whole_from = -1  # what has changed since an older counter than this is not known one by one
        self._clients_max, self._marks_max = clients_max, marks_max
        self.step = 0

    def find(self, key: ClientKey) -> Client | None:
        """Returns the client, a new one if it is a stranger, or None if it was evicted or retired."""
        client = self.clients.get(key)
        if client is not None:
            return client
        if key[1] <= self.evicted_incarnation or key in self._evicted or self.retired.has(key[1]):
            return None
        return Client(key)

    def accept(self, client: Client, sequence: int) -> None:
        """Takes a client's next number."""
        client.accepted = sequence
        self.clients.setdefault(client.key, client)

    def settle(self, client: Client, sequence: int, code: int, counter: int) -> None:
        """Notes what became of a number, in the version with this counter; may evict others for that."""
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
        """Notes that something was done for clients since the job began, or that nothing is known of them any more."""
        if self._before and not set(keys).isdisjoint(self._before):
            self._before = tuple(key for key in self._before if key not in keys)

    def retire(self, retired: RetiredRecord, counter: int) -> bool:
        """Forgets clients and marks that have been retired, in the version with this counter; says whether any was.

        From then on the shard knows by itself that they may not come back, whoever serves it.
        """
        if retired is self._looked:
            return False
        if retired.floor < self.retired.floor or any(self.retired.has(one) for one in retired.kept):
            self._looked = retired  # older than what the shard has taken in
            return False
        over = [client for key, client in self.clients.items() if retired.has(key[1])]
        gone = [client.key for client in over if client.idle]
        if len(gone) == len(over):  # else once more, when nothing of theirs is queued
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
        """Returns the last number of a client that the values contain (or that was refused), 0 if none."""
        client = self.clients.get(key)
        return 0 if client is None else client.done

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def record(self) -> MemoryRecord:
        """Returns what belongs to the values at hand: queued numbers are not in it."""
        clients = tuple([client.record() for client in self.clients.values() if client.done])
        marks = tuple(self._evicted)
        return MemoryRecord(clients, marks, self.evicted_incarnation, self.step, self.retired, self._before)

    def change(self, since: int) -> MemoryChange | None:
        """Returns what is different from the version with counter `since`; None: only the whole can be told."""
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
        return MemoryChange(tuple(clients[::-1]), tuple(evicted[::-1]), marks, self.evicted_incarnation, self.step)

    @classmethod
    def restored(cls, record: MemoryRecord) -> ClientMemory:
        memory = cls()
        for found in record.clients:
            key = (found.node, found.incarnation)
            memory.clients[key] = Client(key, found.sequence, dict(found.refused) or None)
        memory._evicted = dict.fromkeys(record.evicted, -1)
        memory.evicted_incarnation = record.evicted_incarnation
        memory.step = record.step
        memory.retired = memory._looked = record.retired
        memory._before = record.before
        return memory

    def begin_anew(self) -> None:
        """A job begins with this memory, of a checkpoint: it counts its steps from 1, and perhaps in another cluster.

        There incarnations begin again, so nobody is kept out for those of the one that wrote it. Numbers stay: whoever
        attaches is told of its own, and goes on after them.
        """
        self.step, self.evicted_incarnation = 0, -1
        self._evicted.clear()
        self._before = tuple(self.clients)
        self.retired = self._looked = NOBODY

    def take(self, change: MemoryChange) -> None:
        """Makes a copy's memory, as old as the change says or newer, what its primary's is."""
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
        self.evicted_incarnation, self.step = change.evicted_incarnation, change.step

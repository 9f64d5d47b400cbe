"""What one shard remembers of its clients, so that each push is applied at most once (pure).

Numbers of one client on one shard go up by one. The next one is accepted; a repeated one is answered as what became of
it; a gap is refused and nothing is consumed. The memory is part of the shard's state: it is snapshotted with the values
it belongs to.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import TypeAlias

import msgspec

CLIENTS_MAX = 1024
MARKS_MAX = 4096
REFUSED_MAX = 64

ClientKey: TypeAlias = tuple[str, int]
"""(node, incarnation); incarnations are issued by the controllers, each greater than all before."""


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """One client in a snapshot: numbers up to `sequence` are done; those in `refused` (number -> code) on nothing."""

    node: str
    incarnation: int
    sequence: int
    refused: dict[int, int] = {}


class MemoryRecord(msgspec.Struct, frozen=True, array_like=True):
    """A shard's memory in a snapshot, clients in the order in which they began.

    `step` is the last step that all replicas took together which the values contain, 0 if there was none.
    """

    clients: tuple[ClientRecord, ...] = ()
    evicted: tuple[ClientKey, ...] = ()
    evicted_incarnation: int = -1
    step: int = 0


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
        used: the shard's count of accepted numbers at this client's last one; the lowest is evicted first.
    """

    __slots__ = ("accepted", "done", "key", "refused", "used")

    def __init__(self, key: ClientKey, done: int = 0, refused: dict[int, int] | None = None) -> None:
        self.key = key
        self.accepted = done
        self.done = done
        self.refused = refused
        self.used = 0

    def judge(self, sequence: int) -> Verdict:
        if sequence == self.accepted + 1:
            return Verdict.NEXT
        if sequence > self.accepted or sequence < 1:
            return Verdict.GAP
        return Verdict.DONE if sequence <= self.done else Verdict.QUEUED

    def refuse(self, sequence: int, code: int) -> None:
        """Remembers that a number was spent on nothing."""
        if self.refused is None:
            self.refused = {}
        self.refused[sequence] = code
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]


class ClientMemory:
    """All clients of one shard.

    At most CLIENTS_MAX are remembered; the least recently used beyond that is evicted and leaves a mark. A mark
    forgotten in its turn raises `evicted_incarnation`: strangers with an incarnation up to it count as evicted. Only
    clients without queued updates are evicted.
    `step` is as in a record of it.
    """

    __slots__ = ("_accepted", "_clients_max", "_evicted", "_marks_max", "clients", "evicted_incarnation", "step")

    def __init__(self, clients_max: int = CLIENTS_MAX, marks_max: int = MARKS_MAX) -> None:
        self.clients: dict[ClientKey, Client] = {}
        self.evicted_incarnation = -1
        self._evicted: OrderedDict[ClientKey, None] | None = None
        self._clients_max, self._marks_max = clients_max, marks_max
        self._accepted = 0
        self.step = 0

    def find(self, key: ClientKey) -> Client | None:
        """Returns the client, a new one if it is a stranger, or None if it was evicted."""
        client = self.clients.get(key)
        if client is not None:
            return client
        if key[1] <= self.evicted_incarnation or (self._evicted is not None and key in self._evicted):
            return None
        return Client(key)

    def accept(self, client: Client, sequence: int) -> None:
        """Takes a client's next number."""
        self._accepted += 1
        client.accepted = sequence
        client.used = self._accepted
        if client.key in self.clients:
            return
        self.clients[client.key] = client
        if len(self.clients) > self._clients_max:
            idle = [other for other in self.clients.values() if other.done == other.accepted]
            if idle:
                self._evict(min(idle, key=lambda other: other.used).key)

    def _evict(self, key: ClientKey) -> None:
        del self.clients[key]
        if self._evicted is None:
            self._evicted = OrderedDict()
        self._evicted[key] = None
        if len(self._evicted) > self._marks_max:
            (_, incarnation), _ = self._evicted.popitem(last=False)
            self.evicted_incarnation = max(self.evicted_incarnation, incarnation)

    def sequence(self, key: ClientKey) -> int:
        """Returns the last number of a client that the values contain (or that was refused), 0 if none."""
        client = self.clients.get(key)
        return 0 if client is None else client.done

    def record(self) -> MemoryRecord:
        """Returns what belongs to the values at hand: queued numbers are not in it."""
        clients = tuple(
            ClientRecord(
                *client.key, client.done, {n: code for n, code in (client.refused or {}).items() if n <= client.done}
            )
            for client in self.clients.values()
        )
        return MemoryRecord(clients, tuple(self._evicted or ()), self.evicted_incarnation, self.step)

    @classmethod
    def restored(cls, record: MemoryRecord) -> ClientMemory:
        memory = cls()
        for found in record.clients:
            key = (found.node, found.incarnation)
            memory.clients[key] = Client(key, found.sequence, dict(found.refused) or None)
        memory._evicted = OrderedDict((key, None) for key in record.evicted) or None
        memory.evicted_incarnation = record.evicted_incarnation
        memory.step = record.step
        return memory

"""What the writing of a log is about: places of states in it, its records, groups of them, and who waits (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any


class Waiter:
    """Somebody who waits until certain changes are durable: `missing` of them are not yet."""

    __slots__ = ("missing", "token")

    def __init__(self, token: Any) -> None:
        self.token = token
        self.missing = 0


class Entry:
    """What is known of one shard's record (or of one job's holding).

    Attributes:
        owner: whose state it is, for the shell; None if that is not in memory, and the record can only be copied.
        job: what its record names its job by, for the shell; it goes with the entry from owner to owner.
        size_bytes: of its state in memory.
        changes, durable: counts changes, and those that are in a record on disk; durable <= changes.
        sequence, record_bytes: its live record; 0: it has none.
        version: (epoch, counter, pushes) of its live record, as far as it is a shard's.
        flying: it is in the group under way.
        spared: its owner has gone or goes, and its record stays.
        waiting: (changes that must be durable, for whom), ascending.
    """

    __slots__ = (
        "changes",
        "durable",
        "flying",
        "gone",
        "job",
        "owner",
        "record_bytes",
        "sequence",
        "size_bytes",
        "spared",
        "version",
        "waiting",
    )

    def __init__(self, owner: Any, size_bytes: int, job: Any = None) -> None:
        self.owner, self.size_bytes, self.job = owner, size_bytes, job
        self.changes = self.durable = self.sequence = self.record_bytes = 0
        self.version = (0, 0, 0)
        self.flying = self.gone = self.spared = False
        self.waiting: list[tuple[int, Waiter]] = []


@dataclass(slots=True)
class Slot:
    """A record in the log; live as long as its entry says so."""

    sequence: int
    size_bytes: int
    entry: Entry | None

    @property
    def live(self) -> bool:
        return self.entry is not None and self.entry.sequence == self.sequence


@dataclass(slots=True)
class Item:
    """One record to be written: of the entry's state, or a copy of record `copy_of`.

    Attributes:
        changes: those that are in it; known when the state is taken (`FlushCore.taken`).
        version: see `Entry`; of what is written anew.
        since_s: the oldest change in it that is in no record, inf if there is none.
    """

    entry: Entry
    sequence: int
    copy_of: int = 0
    changes: int = 0
    since_s: float = inf
    version: tuple[int, int, int] | None = None


@dataclass(slots=True)
class Group:
    """What to write and remove in one transaction: afterwards the log begins with number `first`."""

    items: list[Item]
    first: int
    removed: list[Slot] = field(default_factory=list)

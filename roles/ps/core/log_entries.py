"""The log's data types: entries, records in it, groups to write, and waiters (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any


class Waiter:
    """Waits until certain changes are durable; `missing` of them are not yet."""

    __slots__ = ("missing", "token")

    def __init__(self, token: Any) -> None:
        self.token = token
        self.missing = 0


class Entry:
    """The log's bookkeeping for one shard's record (or one job's holding record).

    Attributes:
        owner: the object whose state is recorded, for the shell; None if the state is not in memory, so that the
            record can only be copied.
        job: the job's identity in the record, for the shell; it stays with the entry when the owner changes.
        size_bytes: of the state in memory.
        changes, durable: number of changes so far, and of those that are in a record on disk; durable <= changes.
        sequence, record_bytes: its live record; 0 if it has none.
        version: (epoch, counter, pushes) of its live record, if it is a shard's.
        flying: it is in the group being written.
        gone: its records are freed; nothing is written for it any more.
        spared: its record stays although its owner has gone or is going.
        waiting: (changes that must be durable, waiter), ascending.
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
    """A record in the log; live while it is its entry's newest record."""

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
        changes: how many changes it contains; known once the state is captured (`FlushCore.taken`).
        version: see `Entry`; None for copies.
        since_s: time of the oldest change in it that no record has yet; inf if there is none.
    """

    entry: Entry
    sequence: int
    copy_of: int = 0
    changes: int = 0
    since_s: float = inf
    version: tuple[int, int, int] | None = None


@dataclass(slots=True)
class Group:
    """What to write and remove in one transaction; afterwards the log starts at number `first`."""

    items: list[Item]
    first: int
    removed: list[Slot] = field(default_factory=list)

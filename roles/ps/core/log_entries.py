"""The log's data types: entries, records in it, groups to write, and waiters (pure)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Any

CHAIN_FACTOR = 2
"""Changes of a state follow each other in the log until with the whole state they are so many times as large."""


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
        sequence, record_bytes: its newest live record, and the size of all of them; 0 if it has none.
        chain: (number, size) of older live records, oldest first: one of the whole state, then changes. Unless this
            is empty, the newest record is a change, too.
        unsaved: the arrays of the state that were written since it was last captured; None: any of them may have been.
        version: (epoch, counter, pushes) of its live record, if it is a shard's.
        flying: it is in the group being written.
        gone: its records are freed; nothing is written for it any more.
        spared: its record stays although its owner has gone or is going.
        waiting: (changes that must be durable, waiter), ascending.
    """

    __slots__ = (
        "chain",
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
        "unsaved",
        "version",
        "waiting",
    )

    def __init__(self, owner: Any, size_bytes: int, job: Any = None) -> None:
        self.owner, self.size_bytes, self.job = owner, size_bytes, job
        self.changes = self.durable = self.sequence = self.record_bytes = 0
        self.version = (0, 0, 0)
        self.flying = self.gone = self.spared = False
        self.waiting: list[tuple[int, Waiter]] = []
        self.chain: list[tuple[int, int]] = []
        self.unsaved: set[int] | None = None

    def note(self, arrays: Collection[int] | None) -> None:
        """Notes that arrays of the state were written; None: any of them."""
        if arrays is None:
            self.unsaved = None
        elif self.unsaved is not None:
            self.unsaved.update(arrays)

    @property
    def whole(self) -> bool:
        """Whether the next record is of the whole state: a change would save little, or nothing is known of it."""
        return not self.unsaved or not self.sequence or self.record_bytes >= CHAIN_FACTOR * self.size_bytes

    def has(self, sequence: int) -> bool:
        """Returns whether a record is live."""
        return sequence == self.sequence or any([sequence == number for number, _ in self.chain])  # noqa: C419

    def written(self, sequence: int, size_bytes: int, whole: bool) -> int:
        """Notes a new record; returns by how much the size of its live records has grown."""
        before = self.record_bytes
        if whole:
            self.chain, self.record_bytes = [], size_bytes
        else:
            self.chain.append((self.sequence, before - sum(size for _, size in self.chain)))
            self.record_bytes += size_bytes
        self.sequence = sequence
        return self.record_bytes - before

    def freed(self) -> int:
        """Notes that it has no records any more; returns what they took."""
        size_bytes, self.sequence, self.record_bytes, self.chain = self.record_bytes, 0, 0, []
        return size_bytes


@dataclass(slots=True)
class Slot:
    """A record in the log; live while its entry needs it."""

    sequence: int
    size_bytes: int
    entry: Entry | None

    @property
    def live(self) -> bool:
        return self.entry is not None and self.entry.has(self.sequence)


@dataclass(slots=True)
class Item:
    """One record to be written: of the entry's state, or a copy of record `copy_of`.

    Attributes:
        changes: how many changes it contains; known once the state is captured (`FlushCore.taken`).
        version: see `Entry`; None for copies.
        whole: it is of the whole state; else of the arrays in `arrays`, known once the state is captured.
        since_s: time of the oldest change in it that no record has yet; inf if there is none.
    """

    entry: Entry
    sequence: int
    copy_of: int = 0
    changes: int = 0
    since_s: float = inf
    version: tuple[int, int, int] | None = None
    whole: bool = True
    arrays: frozenset[int] = frozenset()


@dataclass(slots=True)
class Group:
    """What to write and remove in one transaction; afterwards the log starts at number `first`."""

    items: list[Item]
    first: int
    removed: list[Slot] = field(default_factory=list)

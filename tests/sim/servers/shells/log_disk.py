"""A server's disk: the real log over a database in memory, whose transactions a crash may take back.

`LogStore` writes, numbers, sums up, compacts and confirms as on LMDB, to an environment that keeps what LMDB promises
with `metasync=False`: a transaction is whole or not there, and the last one may be lost with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import numpy as np

from adamctl.errors import DamagedDataError
from adamctl.kernels.operation import Array
from adamctl.roles.ps.store.lmdb_log import LogStore, Writing, key_of
from adamctl.roles.ps.store.record import Anchor, DamagedRecordError, Record, ShardState, decode
from adamctl.roles.ps.store.recovery import ANCHOR_KEY, StoredRecord

UNAWAITED_S_MAX = 1.0
"""Of syncs for which nobody waits, which is a planted fault."""
Change = tuple[bytes, bytes | None]


class SimLogDisk:
    """What survives a process.

    Attributes:
        full: nothing more fits; `on_full` is told of what did not.
        sync_s_max: longest sync.
        waits: if not, a planted fault: a group counts as durable before it is synced.
    """

    def __init__(self, random: Random, now: Callable[[], float]) -> None:
        self.random, self.now = random, now
        self.full = False
        self.on_full: Callable[[], None] = lambda: None
        self.sync_s_max = 0.002
        self.waits = True
        self.values: dict[bytes, bytes] = {}
        self.file_bytes = 0
        self._unsynced: list[tuple[float, list[Change]]] = []

    def commit(self, changes: list[Change], due_s: float) -> None:
        """A transaction; those before it are on disk for sure at `due_s`, it itself when another has followed."""
        for number, (before_s, earlier) in enumerate(self._unsynced):
            self._unsynced[number] = (min(before_s, due_s), earlier)
        self._unsynced.append((inf, changes))
        while self._unsynced[0][0] <= self.now():
            self.apply(self._unsynced.pop(0)[1])

    def crash(self) -> None:
        """The process is gone: what was not synced may be there, up to some transaction, or not."""
        now = self.now()
        for due_s, changes in self._unsynced:
            if due_s > now and self.random.random() < 0.5:
                break
            self.apply(changes)
        self._unsynced.clear()

    def settled(self) -> dict[bytes, bytes]:
        """Returns what a living process sees."""
        values = dict(self.values)
        for _, changes in self._unsynced:
            _put(values, changes)
        return values

    def apply(self, changes: list[Change]) -> None:
        _put(self.values, changes)


def _put(values: dict[bytes, bytes], changes: Sequence[Change]) -> None:
    for key, value in changes:
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value


class _Transaction:
    def __init__(self, values: dict[bytes, bytes]) -> None:
        self._values, self.changes = values, list[Change]()

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: Any, append: bool = False) -> None:
        stored = bytes(value)
        self._values[key] = stored
        self.changes.append((key, stored))

    def delete(self, key: bytes) -> None:
        assert key in self._values, "a record is removed that is not there"
        del self._values[key]
        self.changes.append((key, None))


class SimEnvironment:
    """The part of an LMDB environment that a log uses."""

    def __init__(self, disk: SimLogDisk) -> None:
        self._disk, self._values = disk, disk.settled()
        self.sync_due_s = 0.0

    @contextmanager
    def begin(self, write: bool = False, buffers: bool = False) -> Iterator[_Transaction]:
        disk = self._disk
        values = dict(self._values) if write else self._values
        transaction = _Transaction(values)
        yield transaction
        if not write:
            return
        if disk.full and disk.random.random() < 0.7:
            disk.on_full()
            raise lmdb.DiskError("mdb_txn_commit: No space left on device")
        self._values = values
        disk.file_bytes += sum(len(value) for _, value in transaction.changes if value is not None)
        disk.commit(transaction.changes, self.sync_due_s)

    def close(self) -> None:
        """Nothing to give back."""


class SimLogStore(LogStore):
    """The log of one process on a disk."""

    def __init__(
        self,
        disk: SimLogDisk,
        name: str,
        took: Callable[[float], None],
        written: Callable[[ShardState, Sequence[Array]], None],
    ) -> None:
        """`took` is told how long what a thread does takes; `written` of each state that is encoded."""
        self.folder = Path("/simulated") / name
        self.path = self.folder / "log"
        self.found: tuple[StoredRecord, ...] = ()
        self.loaded: dict[int, list[Array]] = {}
        self._failed = False
        self._using = threading.Lock()
        self._anchor = Anchor()
        self._scratch = memoryview(bytearray(0))
        self._moved: dict[int, int] = {}
        self._disk, self._took, self._written = disk, took, written
        self._read_found()
        self._simulated = SimEnvironment(disk)
        self._environment = self._simulated  # type: ignore[assignment]

    @property
    def file_bytes(self) -> int:
        return self._disk.file_bytes

    def _read_some(self, sequences: Sequence[int]) -> dict[int, list[Array]]:
        return {sequence: _arrays_of(self._simulated._values[key_of(sequence)]) for sequence in sequences}

    def read_all(self, sequences: Sequence[int]) -> dict[int, list[Array]]:
        return {sequence: self._read_some([self._present(sequence)])[self._present(sequence)] for sequence in sequences}

    def _write(self, writings: Sequence[Writing], first: int, taken: Callable[[], None]) -> list[int]:
        for writing in writings:
            if isinstance(writing.description, ShardState):
                self._written(writing.description, writing.arrays)
        self._begin_sync()
        return super()._write(writings, first, taken)

    def confirm(self) -> None:
        self._begin_sync()
        super().confirm()

    def _begin_sync(self) -> None:
        """The first sync takes its time, during which the process may end; what follows it is quick."""
        longest_s = self._disk.sync_s_max if self._disk.waits else max(self._disk.sync_s_max, UNAWAITED_S_MAX)
        seconds = 0.0002 + self._disk.random.random() * longest_s
        self._simulated.sync_due_s = self._disk.now() + seconds
        if self._disk.waits:
            self._took(seconds)

    def _shrink(self, log_bytes: int) -> None:
        self._disk.file_bytes = sum(len(value) for value in self._simulated._values.values())

    def close(self) -> None:
        """Nothing to give back."""

    def _read_found(self) -> None:
        values = self._disk.settled()
        if not values:
            self._disk.apply([(ANCHOR_KEY, Anchor().encode())])
            return
        try:
            self._anchor = anchor = Anchor.decode(values[ANCHOR_KEY])
            numbers = range(anchor.first, anchor.next)
            if len(values) != 1 + len(numbers):
                raise DamagedRecordError(0, f"there are {len(values) - 1} records, not {len(numbers)}")
            checksum = anchor.checksum_before
            found = []
            newest: dict[Any, int] = {}
            for sequence in numbers:
                value = values[key_of(sequence)]
                record = decode(value, sequence, checksum)
                checksum = record.checksum
                found.append(StoredRecord(sequence, len(value), record.description))
                if isinstance(record.description, ShardState):
                    newest[record.description.job, record.description.shard] = sequence
            if checksum != anchor.checksum_last:
                raise DamagedRecordError(anchor.next, "the last record is not the one that the anchor names")
        except (KeyError, DamagedRecordError) as error:
            raise DamagedDataError(f"{self.path} is damaged: {error!r}") from error
        self.found = tuple(found)
        self.loaded = {sequence: _arrays_of(values[key_of(sequence)]) for sequence in newest.values()}


def _arrays_of(value: bytes) -> list[Array]:
    record: Record = decode(value, int.from_bytes(value[8:16], "little"), int.from_bytes(value[16:20], "little"))
    described = record.description
    assert isinstance(described, ShardState)
    parts = np.frombuffer(record.arrays, "<f4").reshape(described.arrays, described.size)
    return [part.copy() for part in parts]

"""A log of records in one LMDB file, in a folder owned by one process (docs/formats/store.md). Blocking.

`write` makes a group durable with two transactions: one writes the records, the next rewrites the anchor. So the group
is in both of the file's roots, and the first root is synced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import numpy as np

from adamctl.errors import RunFailedError
from adamctl.kernels.operation import Array
from adamctl.roles.folder_lock import FolderLock, unusable
from adamctl.roles.ps.store.record import (
    Anchor,
    DamagedRecordError,
    Description,
    Record,
    RecordKind,
    ShardState,
    StoredRecord,
    decode,
    encode_description,
    encode_parts_into,
    encoded_bytes,
)
from adamctl.roles.ps.store.recovery import ANCHOR_KEY, ReadLog, read_log

LOG_NAME = "log.mdb"
NEW_LOG_NAME = "new-log.mdb"
READERS = 2
SPARE_BYTES = 1 << 20
MAP_BYTES = 1 << 40
"""Address space for the file to grow into: a limit on the log's size, not memory in use."""


class NoSpaceError(Exception):
    """The disk has no space for a group; nothing of it was written, and it may be tried again."""


class UnconfirmedError(Exception):
    """The disk is full: a group is in the log but not durable. Call `LogStore.confirm` again until it succeeds.

    `sizes`: the records' sizes in bytes.
    """

    def __init__(self, message: str, sizes: list[int]) -> None:
        super().__init__(message)
        self.sizes = sizes


@dataclass(frozen=True)
class Writing:
    """One record to write: a description and its arrays, or a copy of record `copy_of` under a new number."""

    sequence: int
    description: Description | None = None
    arrays: Sequence[Array] = field(default=())
    copy_of: int = 0


class LogStore:
    """An open log. Reading and writing exclude each other, because LMDB is used without its reader table.

    Attributes:
        found: the records it held when it was opened, in order; set to () when no longer needed.
        loaded: number -> arrays, of each shard's last record among those; callers remove the ones they use.
        file_bytes: the file's size.
    """

    def __init__(self, folder: Path, *, map_bytes: int = MAP_BYTES) -> None:
        """Opens or creates a log, after checking it.

        Raises:
            ConfigurationError: the folder cannot be used, or another process uses it.
            DamagedDataError: its content is damaged; the message says what to do.
        """
        self.folder = folder
        self.path = folder / LOG_NAME
        self.found: tuple[StoredRecord, ...] = ()
        self.loaded: dict[int, list[Array]] = {}
        self._map_bytes = map_bytes
        self._environment: lmdb.Environment | None = None
        self._failed = False
        self._using = threading.Lock()
        self._anchor = Anchor()
        self._scratch = memoryview(bytearray(0))
        self._moved: dict[int, int] = {}
        self._lock = FolderLock(folder, "--store", "parameter server")
        try:
            self._open()
        except OSError as error:
            self.close()
            raise unusable(folder, "--store", error) from error
        except BaseException:
            self.close()
            raise

    @property
    def next_sequence(self) -> int:
        return self._anchor.next

    @property
    def file_bytes(self) -> int:
        return self.path.stat().st_size

    def read(self, sequence: int) -> list[Array]:
        """Returns copies of a shard's arrays: values, then the rule's state."""
        return self.read_all([sequence])[sequence]

    def read_all(self, sequences: Sequence[int]) -> dict[int, list[Array]]:
        """Like `read`, for many shards; no group is written meanwhile.

        If a record was copied under a new number since this process opened the log, its old number also works.
        """
        found: dict[int, list[Array]] = {}
        if not sequences:
            return found
        with self._using, ThreadPoolExecutor(READERS) as pool:
            present = {self._present(sequence): sequence for sequence in sequences}
            parts = [list(present)[number::READERS] for number in range(READERS)]
            for part in pool.map(self._read_some, parts):
                found |= {present[sequence]: arrays for sequence, arrays in part.items()}
        return found

    def describe(self, sequences: Sequence[int]) -> dict[int, ShardState]:
        """Returns the descriptions of shard records, without their arrays."""
        found: dict[int, ShardState] = {}
        with self._using, self._open_log.begin(buffers=True) as transaction:
            for sequence in sequences:
                present = self._present(sequence)
                value = value_of(transaction, present)
                record = decode(value, present, int.from_bytes(value[16:20], "little"), summed=False)
                assert isinstance(record.description, ShardState)
                found[sequence] = record.description
        return found

    @property
    def _open_log(self) -> lmdb.Environment:
        """The log. Raises RunFailedError: it was closed meanwhile, as the server ends."""
        if self._environment is None:
            raise RunFailedError(f"{self.path} is closed: the server ends")
        return self._environment

    def _present(self, sequence: int) -> int:
        while sequence in self._moved:
            sequence = self._moved[sequence]
        return sequence

    def _read_some(self, sequences: Sequence[int]) -> dict[int, list[Array]]:
        found: dict[int, list[Array]] = {}
        with self._open_log.begin(buffers=True) as transaction:
            for sequence in sequences:
                value = value_of(transaction, sequence)
                record = decode(value, sequence, int.from_bytes(value[16:20], "little"), summed=False)
                found[sequence] = _arrays(record)
        return found

    def write(self, writings: Sequence[Writing], first: int, taken: Callable[[], None] = lambda: None) -> list[int]:
        """Appends records, removes those before number `first`, and makes both durable.

        Args:
            writings: numbered consecutively after the last record.
            taken: called when the arrays are no longer needed.

        Returns:
            The records' sizes in bytes.

        Raises:
            NoSpaceError: the disk is full; the log is unchanged.
            UnconfirmedError: the disk is full; the group is in the log, but not durable.
            RunFailedError: the disk's state is unknown; nothing more can be written.
        """
        if self._failed:
            raise RunFailedError(f"an earlier write to {self.path} failed; start the server again")
        with self._using:
            return self._write(writings, first, taken)

    def _write(self, writings: Sequence[Writing], first: int, taken: Callable[[], None]) -> list[int]:
        try:
            sizes = self._append(writings, first, taken)
        except lmdb.Error as error:
            needed_bytes = sum(array.nbytes for writing in writings for array in writing.arrays)
            raise self._trouble(error, needed_bytes) from error
        try:
            self._confirmed()
        except NoSpaceError as error:
            raise UnconfirmedError(str(error), sizes) from error
        return sizes

    def confirm(self) -> None:
        """Makes the last group durable, after UnconfirmedError. Raises NoSpaceError and RunFailedError as `write`."""
        with self._using:
            self._confirmed()

    def _confirmed(self) -> None:
        try:
            self._confirm()
        except lmdb.Error as error:
            raise self._trouble(error, 0) from error

    def _append(self, writings: Sequence[Writing], first: int, taken: Callable[[], None]) -> list[int]:
        """Writes one transaction; its pages are synced, its root is not yet."""
        assert self._environment is not None
        anchor = self._anchor
        checksum, before = anchor.checksum_last, anchor.checksum_before
        sizes: list[int] = []
        with self._environment.begin(write=True) as transaction:
            for writing in writings:
                size_bytes, checksum = self._encode(writing, checksum, transaction)
                transaction.put(key_of(writing.sequence), self._scratch[:size_bytes], append=True)
                sizes.append(size_bytes)
            taken()
            following = anchor.next + len(writings)
            if first > anchor.first:
                before = checksum if first == following else _checksum(transaction, first - 1)
                for sequence in range(anchor.first, first):
                    transaction.delete(key_of(sequence))
            anchor = Anchor(first, following, before, checksum)
            transaction.put(ANCHOR_KEY, anchor.encode())
        self._anchor = anchor
        self._moved |= {writing.copy_of: writing.sequence for writing in writings if writing.copy_of}
        self._moved = {old: new for old, new in self._moved.items() if self._present(new) >= anchor.first}
        return sizes

    def _confirm(self) -> None:
        """Commits a transaction without changes: it syncs the previous root and makes both roots equal."""
        assert self._environment is not None
        with self._environment.begin(write=True) as transaction:
            transaction.put(ANCHOR_KEY, self._anchor.encode())

    def _encode(self, writing: Writing, checksum: int, transaction: lmdb.Transaction) -> tuple[int, int]:
        """Encodes a record into the scratch buffer; returns its size and checksum."""
        if writing.copy_of:
            value = value_of(transaction, writing.copy_of)
            record = decode(value, writing.copy_of, int.from_bytes(value[16:20], "little"))
            kind = RecordKind(int.from_bytes(value[6:8], "little"))
            described = encode_description(record.description)
            arrays: Sequence[memoryview] = (record.arrays,)
        else:
            assert writing.description is not None
            kind = RecordKind.SHARD if isinstance(writing.description, ShardState) else RecordKind.HOLDING
            described = encode_description(writing.description)
            arrays = [np.ascontiguousarray(array, "<f4").data.cast("B") for array in writing.arrays]
        needed = encoded_bytes(described, arrays)
        if len(self._scratch) < needed:
            self._scratch = memoryview(bytearray(needed))
        return encode_parts_into(self._scratch, writing.sequence, checksum, kind, described, arrays)

    def _trouble(self, error: lmdb.Error, needed_bytes: int) -> NoSpaceError | RunFailedError:
        """Distinguishes a full disk from a failure.

        If a file system has space for part of a page, it writes that part, and LMDB reports an input/output error. A
        quota and a limit on the length of files (RLIMIT_FSIZE) count as a full disk.
        """
        full = isinstance(error, (lmdb.DiskError, lmdb.MapFullError))
        full = full or any(os.strerror(number) in str(error) for number in (errno.EDQUOT, errno.EFBIG))
        if not full and os.strerror(errno.EIO) in str(error):
            full = self._free_bytes < needed_bytes + SPARE_BYTES
        return NoSpaceError(f"{self.path}: {error}") if full else self._failure(error)

    def _failure(self, error: Exception) -> RunFailedError:
        self._failed = True
        return RunFailedError(f"{self.path} cannot be written: {error}; repair the disk, then start the server again")

    def shrink(self, log_bytes: int = 0) -> None:
        """Replaces the file with a copy without its free pages, of at least `log_bytes`.

        Raises:
            NoSpaceError: there is no space for the copy. If that can be told before, nothing is written.
            RunFailedError: the copy cannot replace the file.
        """
        with self._using:
            self._shrink(log_bytes)

    @property
    def _free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def _shrink(self, log_bytes: int) -> None:
        assert self._environment is not None
        if self._free_bytes < log_bytes + SPARE_BYTES:
            text = f"{self.folder}: expected {log_bytes >> 20} MiB for a copy of the log; free are"
            raise NoSpaceError(f"{text} {self._free_bytes >> 20}")
        new = self.folder / NEW_LOG_NAME
        new.unlink(missing_ok=True)
        try:
            self._environment.copy(str(new), compact=True)
            _sync(new)
        except (lmdb.Error, OSError) as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise NoSpaceError(f"{new}: {error}") from error
        try:
            self._environment.close()
            self._environment = None
            os.replace(new, self.path)
            _sync(self.folder)
            self._environment = self._opened(self.path)
        except (lmdb.Error, OSError) as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Closes the log, after what a thread is reading, and unlocks the folder."""
        with self._using:  # a thread that reads is in the file's mapped memory
            if self._environment is not None:
                self._environment.close()
                self._environment = None
        self._lock.release()

    # --- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        (self.folder / NEW_LOG_NAME).unlink(missing_ok=True)
        if self.path.exists():
            read = read_log(self.path)
        else:
            self._create()
            read = ReadLog()
        self._environment = self._opened(self.path)
        self._anchor, self.found, self.loaded = read.anchor, read.found, read.arrays
        self._reach_last_page()

    def _create(self) -> None:
        """Creates an empty log atomically, so that a log without an anchor is always a damaged one."""
        new = self.folder / NEW_LOG_NAME
        environment = self._opened(new)
        try:
            for _ in range(2):  # both roots
                with environment.begin(write=True) as transaction:
                    transaction.put(ANCHOR_KEY, Anchor().encode())
        except lmdb.Error as error:
            raise OSError(errno.EIO, str(error)) from error
        finally:
            environment.close()
        _sync(new)
        os.replace(new, self.path)
        _sync(self.folder)

    def _opened(self, path: Path) -> lmdb.Environment:
        try:
            environment = lmdb.open(
                str(path), subdir=False, lock=False, map_size=self._map_bytes, max_dbs=0, metasync=False, meminit=False
            )
            os.chmod(path, 0o600)  # LMDB's copies, and stores of earlier versions, are readable by everyone
            return environment
        except lmdb.Error as error:
            raise OSError(errno.EIO, str(error)) from error

    def _reach_last_page(self) -> None:
        """Extends the file to its last page: LMDB may omit free pages at the end, and reading them gives SIGBUS."""
        assert self._environment is not None
        pages = int(self._environment.info()["last_pgno"]) + 1
        size_bytes = pages * int(self._environment.stat()["psize"])
        if self.file_bytes < size_bytes:
            os.truncate(self.path, size_bytes)


def _arrays(record: Record) -> list[Array]:
    described = record.description
    assert isinstance(described, ShardState)
    parts = np.frombuffer(record.arrays, "<f4").reshape(described.arrays, described.size)
    return [part.copy() for part in parts]


def key_of(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def value_of(transaction: lmdb.Transaction, sequence: int) -> memoryview:
    """Raises DamagedRecordError if there is no such record."""
    value = transaction.get(key_of(sequence))
    if value is None:
        raise DamagedRecordError(sequence, "it is missing")
    return memoryview(value)


def _checksum(transaction: lmdb.Transaction, sequence: int) -> int:
    return int.from_bytes(value_of(transaction, sequence)[-4:], "little")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Reads a whole log from its file before it is used; every record is checked as it is copied into memory.

The file is read, never mapped, by a few threads: while one waits for the disk, another computes checksums. Reads are
announced ahead, so that the disk is never idle. The newest records come first, so that superseded ones need no memory.
The chain of checksums is verified when all records have been read. Blocking.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from adamctl.errors import DamagedDataError
from adamctl.kernels.operation import Array
from adamctl.roles.ps.store.lmdb_pages import (
    HEADER_BYTES,
    DamagedPagesError,
    Value,
    check_large,
    page_bytes_of,
    values_of,
)
from adamctl.roles.ps.store.record import (
    CHECKSUM,
    Anchor,
    DamagedRecordError,
    JobIdentity,
    ShardState,
    StoredRecord,
    decode_description,
    decode_header,
)
from adamctl.roles.ps.store.record import HEADER_BYTES as RECORD_HEADER_BYTES
from adamctl.wire.checksum import crc32

ANCHOR_KEY: Final = bytes(8)
READERS: Final = 3
HEAD_BYTES: Final = 16 << 10
"""Read first from every record: all of a small record; of a large one enough to know where the rest goes."""
TASK_BYTES: Final = 8 << 20
"""Size of one thread's task, and of the memory its arrays share: large enough for large pages."""
TASKS_AHEAD: Final = 8
ALIGNMENT_BYTES: Final = 64

_Numbered: TypeAlias = "tuple[int, Value]"


@dataclass
class ReadLog:
    """A log that was read and checked.

    Attributes:
        found: its records, in order.
        arrays: number -> arrays, of each shard's last record.
    """

    anchor: Anchor = field(default_factory=Anchor)
    found: tuple[StoredRecord, ...] = ()
    arrays: dict[int, list[Array]] = field(default_factory=dict)


def read_log(path: Path, *, keep: bool = True, readers: int = READERS) -> ReadLog:
    """Reads and checks a log.

    Args:
        keep: False drops the arrays after they are checked.
        readers: number of threads.

    Raises:
        DamagedDataError: it is damaged; the message says what was found and what to do.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _Reading(descriptor, keep).run(readers)
    except (DamagedPagesError, DamagedRecordError) as error:
        raise DamagedDataError(
            f"{path} is damaged: {error}. Nothing in it is served. Move the folder {path.parent} away, start the "
            "server again and resume from the job's last checkpoint (adamctl train --resume); or restore a copy of "
            "the folder"
        ) from error
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Found:
    """A record that was checked by itself."""

    record: StoredRecord
    before: int
    checksum: int


class _Reading:
    """Reads one file."""

    def __init__(self, descriptor: int, keep: bool) -> None:
        self._descriptor, self._keep = descriptor, keep
        self._file_bytes = os.fstat(descriptor).st_size
        self._lock = threading.Lock()  # protects the following
        self._newest: dict[tuple[JobIdentity, int], int] = {}
        self._arrays: dict[int, list[Array]] = {}
        self._broken = False

    def run(self, readers: int) -> ReadLog:
        self._page_bytes = page_bytes_of(self._descriptor)
        values = values_of(self._descriptor)
        anchor = self._anchor(values)
        self._tasks = _in_tasks(_numbered(values, anchor)[::-1])
        for task in self._tasks[:TASKS_AHEAD]:
            self._ask(task)
        found: list[_Found] = []
        with ThreadPoolExecutor(readers, thread_name_prefix="store-read") as pool:
            for part in pool.map(self._read_task, range(len(self._tasks))):
                found += part
        found.sort(key=lambda one: one.record.sequence)
        _check_chain(found, anchor)
        return ReadLog(anchor, tuple(one.record for one in found), self._arrays)

    def _anchor(self, values: Sequence[Value]) -> Anchor:
        if not values or values[0].key != ANCHOR_KEY or values[0].pages:
            raise DamagedRecordError(0, "the anchor is missing")
        return Anchor.decode(os.pread(self._descriptor, values[0].size, values[0].offset))

    def _ask(self, task: Sequence[_Numbered]) -> None:
        """Asks the operating system to read records ahead, in as few contiguous ranges as possible."""
        if not hasattr(os, "posix_fadvise"):
            return
        start = stop = 0
        for _, value in task:
            if value.offset - stop > self._page_bytes:
                self._ask_stretch(start, stop)
                start = value.offset
            stop = value.offset + value.size
        self._ask_stretch(start, stop)

    def _ask_stretch(self, start: int, stop: int) -> None:
        if stop > start:
            os.posix_fadvise(self._descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)

    # --- records ----------------------------------------------------------------------------------------------------

    def _read_task(self, number: int) -> list[_Found]:
        if number + TASKS_AHEAD < len(self._tasks):
            self._ask(self._tasks[number + TASKS_AHEAD])
        task = self._tasks[number]
        room = _Room(sum(value.size for _, value in task) + 2 * ALIGNMENT_BYTES * len(task))
        try:
            return [self._read(sequence, value, room) for sequence, value in task if not self._broken]
        except BaseException:
            self._broken = True  # the other tasks may stop
            raise

    def _read(self, sequence: int, value: Value, room: _Room) -> _Found:
        """Reads a record and keeps its arrays if it is the newest of its shard so far."""
        head = room.head
        front = HEADER_BYTES if value.pages else 0
        got = self._fill(sequence, [head[: front + value.size]], value.offset - front) - front
        if value.pages:
            check_large(value, head[:front], self._page_bytes)
        start = head[front : front + got]
        header = decode_header(start, sequence)
        if header.end + CHECKSUM.size != value.size:
            raise DamagedRecordError(sequence, f"expected {header.end + CHECKSUM.size} bytes; found {value.size}")
        described = start[RECORD_HEADER_BYTES : header.arrays_start]
        if header.arrays_start > got:
            longer = memoryview(bytearray(header.arrays_start))
            self._fill(sequence, [longer], value.offset)
            start, described = longer, longer[RECORD_HEADER_BYTES:]
        description = decode_description(sequence, header, described)
        arrays: list[Array] = []
        keep = False
        if isinstance(description, ShardState):
            keep = self._keep and self._newest.get((description.job, description.shard), 0) < sequence
            arrays = room.arrays(description.arrays, description.size, keep)
        checksum = self._read_arrays(sequence, value, start, header.arrays_start, arrays)
        if isinstance(description, ShardState) and keep:
            self._keep_newest((description.job, description.shard), sequence, arrays)
        return _Found(StoredRecord(sequence, value.size, description), header.checksum_before, checksum)

    def _read_arrays(
        self, sequence: int, value: Value, start: memoryview, arrays_start: int, arrays: Sequence[Array]
    ) -> int:
        """Fills the arrays with the bytes after the description; returns the record's checksum.

        Args:
            start: the part of the record read so far: at least the description.
        """
        views = [array.data.cast("B") for array in arrays if array.size]
        end = memoryview(bytearray(CHECKSUM.size))
        left: list[memoryview] = []
        position = arrays_start
        for view in (*views, end):
            known = min(max(len(start) - position, 0), len(view))
            view[:known] = start[position : position + known]
            if known < len(view):
                left.append(view[known:])
            position += len(view)
        if left:
            missing = sum(len(view) for view in left)
            self._fill(sequence, left, value.offset + value.size - missing)
        found = crc32(start[:arrays_start])
        for view in views:
            found = crc32(view, found)
        if (found,) != CHECKSUM.unpack(end):
            raise DamagedRecordError(sequence, "its checksum is wrong")
        return found

    def _keep_newest(self, shard: tuple[JobIdentity, int], sequence: int, arrays: list[Array]) -> None:
        with self._lock:
            newest = self._newest.get(shard, 0)
            if newest < sequence:
                self._newest[shard] = sequence
                self._arrays[sequence] = arrays
                self._arrays.pop(newest, None)

    def _fill(self, sequence: int, views: list[memoryview], offset: int) -> int:
        """Reads the file into views, one after another; returns the number of bytes read."""
        wanted = sum(len(view) for view in views)
        got = os.preadv(self._descriptor, views, offset)
        while got < wanted:
            passed, rest = got, []
            for view in views:
                rest.append(view[min(passed, len(view)) :])
                passed -= min(passed, len(view))
            more = os.preadv(self._descriptor, [view for view in rest if view], offset + got)
            if not more:
                raise DamagedRecordError(sequence, f"the file ends inside it, after {offset + got} bytes")
            got += more
        return got


def _numbered(values: Sequence[Value], anchor: Anchor) -> list[_Numbered]:
    """Returns the records' numbers and values. Raises DamagedRecordError for a gap or an unexpected key."""
    numbered = []
    expected = anchor.first
    for value in values[1:]:
        if len(value.key) != 8 or int.from_bytes(value.key, "big") != expected or expected >= anchor.next:
            raise DamagedRecordError(expected, f"found the key {value.key[:16].hex()}")
        numbered.append((expected, value))
        expected += 1
    if expected != anchor.next:
        raise DamagedRecordError(expected, f"it is missing; the log should end with {anchor.next - 1}")
    return numbered


def _in_tasks(numbered: Sequence[_Numbered]) -> list[list[_Numbered]]:
    """Cuts a list of records into tasks of about TASK_BYTES, each in file order."""
    tasks: list[list[_Numbered]] = []
    filled = TASK_BYTES
    for one in numbered:
        if filled >= TASK_BYTES:
            tasks.append([])
            filled = 0
        tasks[-1].append(one)
        filled += one[1].size
    for task in tasks:
        task.sort(key=lambda one: one[1].offset)
    return tasks


class _Room:
    """Memory for a task's arrays, in one block; allocated when the first array is kept.

    Attributes:
        head: buffer for the start of a record, reused for each.
    """

    def __init__(self, bytes_max: int) -> None:
        self.head = memoryview(bytearray(HEAD_BYTES))
        self._bytes_max = bytes_max
        self._kept: Array | None = None
        self._dropped: Array | None = None
        self._taken = 0

    def arrays(self, count: int, size: int, keep: bool) -> list[Array]:
        """Returns arrays of `size` elements: to keep, or to be overwritten by the next ones not kept."""
        step = -(-4 * size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // 4
        if not keep:
            if self._dropped is None or self._dropped.size < count * step:
                self._dropped = np.empty(count * step, "<f4")
            return [self._dropped[number * step :][:size] for number in range(count)]
        if self._kept is None:
            self._kept = _aligned(self._bytes_max // 4)
        if self._taken + count * step > self._kept.size:
            return [np.empty(size, "<f4") for _ in range(count)]
        arrays = [self._kept[self._taken + number * step :][:size] for number in range(count)]
        self._taken += count * step
        return arrays


def _aligned(size: int) -> Array:
    spare = ALIGNMENT_BYTES // 4
    array = np.empty(size + spare, "<f4")
    skip = -(array.ctypes.data // 4) % spare
    return array[skip : skip + size]


def _check_chain(found: Sequence[_Found], anchor: Anchor) -> None:
    checksum = anchor.checksum_before
    for one in found:
        if one.before != checksum:
            raise DamagedRecordError(one.record.sequence, "it does not follow the one before")
        checksum = one.checksum
    if checksum != anchor.checksum_last:
        raise DamagedRecordError(anchor.next, "the last record is not the one that the anchor names")

"""Reads a log from end to end before a server trusts it: in a process of its own, which may die of what it finds.

A truncated LMDB file kills its reader with SIGBUS, and a damaged tree may make LMDB crash or go round in circles; that
must not happen to a server. Run as `python -m adamctl.roles.ps.store_check FILE`; prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from adamctl.errors import DamagedDataError, RunFailedError
from adamctl.roles.ps.log_record import Anchor, DamagedRecordError, Record, decode

ANCHOR_KEY = bytes(8)
MAP_BYTES = 1 << 40
"""Address space for the file to grow into; a limit of the log's size, not memory."""
SECONDS_PER_GB_MAX = 60.0
SECONDS_MIN = 60.0
_READ_BYTES = 8 << 20
_AHEAD_RECORDS = 16


def key_of(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


@contextmanager
def opened(path: Path) -> Iterator[lmdb.Environment]:
    """Opens a log for reading only. Raises lmdb.Error."""
    environment = lmdb.open(
        str(path), subdir=False, readonly=True, lock=False, map_size=MAP_BYTES, max_dbs=0, create=False
    )
    try:
        yield environment
    finally:
        environment.close()


def value_of(transaction: lmdb.Transaction, sequence: int) -> memoryview:
    """Raises DamagedRecordError if there is no such record."""
    value = transaction.get(key_of(sequence))
    if value is None:
        raise DamagedRecordError(sequence, "it is missing")
    return memoryview(value)


def anchor_of(transaction: lmdb.Transaction) -> Anchor:
    """Raises DamagedRecordError."""
    value = transaction.get(ANCHOR_KEY)
    if value is None:
        raise DamagedRecordError(0, "there is no anchor")
    return Anchor.decode(value)


def values_of(transaction: lmdb.Transaction, anchor: Anchor) -> Iterator[tuple[int, memoryview]]:
    """Yields (number, value) of every record. Raises DamagedRecordError for a gap, and for keys that do not belong."""
    expected = anchor.first
    for key, value in transaction.cursor():
        if key == ANCHOR_KEY:
            continue
        if len(key) != 8 or int.from_bytes(key, "big") != expected or expected >= anchor.next:
            raise DamagedRecordError(expected, f"found the key {bytes(key[:16]).hex()}")
        yield expected, memoryview(value)
        expected += 1
    if expected != anchor.next:
        raise DamagedRecordError(expected, f"it is missing; the log should reach to {anchor.next - 1}")


def check(path: Path, threads: int = 2, sound: Callable[[int], None] = lambda sequence: None) -> dict[str, int]:
    """Reads everything and compares every checksum; returns counts.

    Args:
        sound: is told, now and then, that all records up to a number are sound.

    Raises:
        DamagedRecordError: what was found; `sequence` is 0 if it is not about a record.
        OSError, lmdb.Error: it cannot be read at all.
    """
    with (
        opened(path) as environment,
        environment.begin(buffers=True) as transaction,
        ThreadPoolExecutor(threads) as pool,
    ):
        anchor = anchor_of(transaction)
        checksum, size_bytes, records = anchor.checksum_before, 0, 0
        under_way: deque[Future[_Checked]] = deque()

        def settle(count: int) -> None:
            nonlocal checksum, size_bytes, records
            for _ in range(count):
                record = under_way.popleft().result()
                if record.before != checksum:
                    raise DamagedRecordError(record.sequence, "it does not follow the one before")
                checksum = record.checksum
                size_bytes += record.size_bytes
                records += 1
            sound(anchor.first + records - 1)

        for sequence, value in values_of(transaction, anchor):
            under_way.append(pool.submit(_Checked, sequence, value))
            if len(under_way) >= 2 * _AHEAD_RECORDS:
                settle(_AHEAD_RECORDS)
        settle(len(under_way))
        if checksum != anchor.checksum_last:
            raise DamagedRecordError(anchor.next, "the last record is not the one that the anchor names")
    return {"records": records, "record_bytes": size_bytes, "file_bytes": path.stat().st_size}


class _Checked:
    """A record that is sound by itself; whether it follows the one before is for the caller to see."""

    def __init__(self, sequence: int, value: memoryview) -> None:
        self.sequence = sequence
        self.before = int.from_bytes(value[16:20], "little")
        record: Record = decode(value, sequence, self.before)
        self.checksum = record.checksum
        self.size_bytes = record.size_bytes
        if record.size_bytes != len(value):
            raise DamagedRecordError(sequence, f"{len(value) - record.size_bytes} bytes follow it")


def _read_through(path: Path) -> None:
    """Brings the file into memory as fast as the disk gives it; what cannot be read, the check will hit upon."""
    buffer = bytearray(_READ_BYTES)
    try:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    except OSError:
        return


def check_apart(path: Path, sound: Callable[[int], None] = lambda sequence: None) -> dict[str, int]:
    """Checks a log in a child process; blocking. `sound` as for `check`, on this thread.

    Raises:
        DamagedDataError: it is damaged; the message says what was found.
        RunFailedError: the check itself could not be done.
    """
    limit_s = SECONDS_MIN + SECONDS_PER_GB_MAX * path.stat().st_size / 1e9
    threading.Thread(target=_read_through, args=(path,), daemon=True).start()  # while the child is being started
    command = [sys.executable, "-m", "adamctl.roles.ps.store_check", str(path)]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise RunFailedError(f"{path} cannot be checked: {error}") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit_s, end)
    timer.start()
    found: dict[str, Any] = {}
    try:
        with process:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                found = json.loads(line)
                if "sound" in found:
                    sound(int(found["sound"]))
            said = process.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise _damaged(path, f"reading it did not come to an end within {limit_s:.0f} s")
    if process.returncode in (-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE):
        name = signal.Signals(-process.returncode).name
        raise _damaged(path, f"its pages are cut off or altered (its reader died of {name})")
    if "damaged" in found:
        raise _damaged(path, str(found["damaged"]))
    if "records" not in found:
        raise RunFailedError(f"{path} cannot be checked: exit status {process.returncode} {' '.join(said)}")
    return found


def _damaged(path: Path, reason: str) -> DamagedDataError:
    return DamagedDataError(
        f"{path} is damaged: {reason}. Nothing of it is served. Move the folder {path.parent} away, start the server "
        "again and go on from the job's last checkpoint (adamctl train --resume); or put back a copy of the folder"
    )


def main(path: str) -> None:
    """Prints what was found: counts, or `damaged`."""

    def sound(sequence: int) -> None:
        print(json.dumps({"sound": sequence}), flush=True)

    try:
        found: dict[str, Any] = dict(check(Path(path), os.cpu_count() or 1, sound))
    except (DamagedRecordError, lmdb.Error, OSError, ValueError) as error:
        found = {"damaged": str(error)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Keeps what a controller must not forget on disk, in a folder owned by one process.

Files: `lock`, `vote`, `log-NNNNNNNN` and, from the second generation on, `snapshot-NNNNNNNN` with the state that the
log begins from. docs/formats/controller-store.md has the bytes. A batch is one record, present as a whole or not at
all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from adamctl.errors import ConfigurationError, DamagedDataError, RunFailedError
from adamctl.roles.controller.core.instructions import Append, Persist, SaveSnapshot, SaveVote
from adamctl.roles.controller.core.paxos.messages import Ballot, Entry, PaxosSnapshot, Vote
from adamctl.roles.controller.log_format import (
    FILE_HEADER,
    FORMAT_1_MAGICS,
    LOG_MAGIC,
    SNAPSHOT_MAGIC,
    VOTE_MAGIC,
    DamagedRecordError,
    decode_records,
    encode_file_header,
    encode_record,
    first_checksum,
)
from adamctl.roles.durable_file import replace_file, write_all
from adamctl.roles.folder_lock import FolderLock, unusable
from adamctl.wire.unreadable import UNREADABLE

SNAPSHOT_AFTER_BYTES = 1 << 20
"""A controller that starts reads the whole log at once, and its memory stays as large as that made it."""
StructT = TypeVar("StructT")
_BATCH = msgspec.msgpack.Decoder(list[Entry])
_SNAPSHOT = msgspec.msgpack.Decoder(PaxosSnapshot)
_VOTE = msgspec.msgpack.Decoder(Vote)


class Store(Protocol):
    """Where a controller's promises and decisions are kept.

    `vote`, `snapshot` and `entries` are what was found on opening. Whoever has recovered from the last two empties
    them.
    """

    vote: Vote | None
    snapshot: PaxosSnapshot | None
    entries: tuple[Entry, ...]
    blocks: bool
    """Whether `persist` and `write_snapshot` wait for a disk and should run in a thread."""

    def persist(self, instructions: Sequence[Persist]) -> None:
        """Carries out instructions in their order; all are on disk when it returns."""
        ...

    @property
    def wants_snapshot(self) -> bool: ...

    def write_snapshot(self, snapshot: PaxosSnapshot, accepted: Sequence[Entry] = ()) -> None: ...

    def close(self) -> None: ...


class LogStore:
    """A store in a folder. Not thread-safe; its calls block (one thread at a time may make them).

    Attributes:
        vote, snapshot, entries: what was found on opening. No vote: the folder is new.
        cut_bytes: length of a torn tail that was removed from the log. Nobody relies on it: what a batch promises is
            sent only after its sync has returned, and a crash can tear only what was not synced.
    """

    blocks = True

    def __init__(
        self, folder: Path, *, snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES, read_only: bool = False
    ) -> None:
        """Opens or creates a store. `read_only`: only looks at one, and changes nothing in it but the lock.

        Raises:
            ConfigurationError: the folder cannot be used, or another process uses it.
            DamagedDataError: a file is damaged; the message says what to do.
        """
        self.folder = folder
        self.cut_bytes = 0
        self.vote: Vote | None = None
        self.snapshot: PaxosSnapshot | None = None
        self.entries: tuple[Entry, ...] = ()
        self._snapshot_after_bytes = snapshot_after_bytes
        self._failed = read_only
        self._read_only = read_only
        self._generation = 1
        self._checksum = 0  # of the log's last record
        self._log_bytes = 0
        self._snapshot_bytes = 0
        self._lock = FolderLock(folder, "--dir", "controller")
        self._log = -1
        try:
            self._open()
        except OSError as error:
            self.close()
            raise unusable(folder, "--dir", error) from error
        except BaseException:
            self.close()
            raise

    def persist(self, instructions: Sequence[Persist]) -> None:
        """Carries out instructions in their order, with one sync for appends that follow each other.

        Of consecutive votes only the last is written: nothing is sent in between.

        Raises:
            RunFailedError: a write failed. No further write is allowed, since what the disk holds is unknown.
        """
        entries: list[Entry] = []
        vote: Vote | None = None
        for instruction in instructions:
            if vote is not None and not isinstance(instruction, SaveVote):
                self.write_vote(vote)
                vote = None
            if entries and not isinstance(instruction, Append):
                self.append(entries)
                entries = []
            match instruction:
                case SaveVote():
                    vote = instruction.vote
                case Append():
                    entries.append(instruction.entry)
                case SaveSnapshot():
                    self.write_snapshot(instruction.snapshot)
        if vote is not None:
            self.write_vote(vote)
        if entries:
            self.append(entries)

    def write_vote(self, vote: Vote) -> None:
        """Replaces the vote file. Raises as `persist`."""
        payload, _ = encode_record(msgspec.msgpack.encode(vote), first_checksum(1))
        with self._failing():
            self._create(self.folder / "vote", encode_file_header(VOTE_MAGIC, 1) + payload)

    def append(self, batch: Sequence[Entry]) -> None:
        """Adds a batch to the log and syncs it. Raises as `persist`."""
        data, checksum = encode_record(msgspec.msgpack.encode(list(batch)), self._checksum)
        with self._failing():
            write_all(self._log, data)
            os.fdatasync(self._log) if hasattr(os, "fdatasync") else os.fsync(self._log)
        self._checksum = checksum
        self._log_bytes += len(data)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Wraps every write: after a failed one, all others are refused."""
        if self._failed:
            raise RunFailedError(f"an earlier write to {self.folder} failed; start the controller again")
        try:
            yield
        except OSError as error:
            self._failed = True
            raise RunFailedError(
                f"the configuration cannot be written to {self.folder}: {error.strerror}; make room or repair the "
                "disk, then start the controller again"
            ) from error

    @property
    def wants_snapshot(self) -> bool:
        """Whether the log has grown enough to be worth a snapshot: beyond some length, and that of the last one."""
        return self._log_bytes > max(self._snapshot_after_bytes, self._snapshot_bytes)

    def write_snapshot(self, snapshot: PaxosSnapshot, accepted: Sequence[Entry] = ()) -> None:
        """Begins the next generation: replaces the log by the state it leads to and what was accepted after it.

        Raises as `persist`.
        """
        generation = self._generation + 1
        encoded = msgspec.msgpack.encode(snapshot)
        payload, _ = encode_record(encoded, first_checksum(generation))
        log, checksum = encode_file_header(LOG_MAGIC, generation), first_checksum(generation)
        if accepted:
            record, checksum = encode_record(msgspec.msgpack.encode(list(accepted)), checksum)
            log += record
        with self._failing():
            # The new log exists before the snapshot that makes it valid.
            self._create(self._log_path(generation), log)
            self._create(self._snapshot_path(generation), encode_file_header(SNAPSHOT_MAGIC, generation) + payload)
            os.close(self._log)
            self._log = -1
            self._remove_all_but(generation)
            self._start(generation, len(log), checksum)
        self._snapshot_bytes = len(encoded)

    def close(self) -> None:
        """Releases the folder."""
        if self._log >= 0:
            with suppress(OSError):
                os.close(self._log)
            self._log = -1
        self._lock.release()

    # --- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.vote = self._read_vote()
        generations = sorted(_number(path) for path in self.folder.glob("snapshot-*") if _number(path))
        generation = generations[-1] if generations else 1
        path = self._log_path(generation)
        if generations:
            self.snapshot = self._read_snapshot(generation)
            self._snapshot_bytes = self._snapshot_path(generation).stat().st_size
        if not path.exists():
            if generations or any(_number(other) for other in self.folder.glob("log-*")):
                raise self._damaged(path, "the file is missing")
            if self.vote is not None and self.vote.promised != Ballot():
                raise self._damaged(path, "the file is missing")
            if self._read_only:
                return
            self._create(path, encode_file_header(LOG_MAGIC, generation))
        end, checksum = self._read_log(path, generation)
        if self.vote is None and (self.entries or self.snapshot is not None):
            raise self._damaged(self.folder / "vote", "the file is missing")
        if not self._read_only:
            self._remove_all_but(generation)
            self._start(generation, end, checksum)

    def _read_vote(self) -> Vote | None:
        path = self.folder / "vote"
        return self._read_one(path, VOTE_MAGIC, 1, _VOTE) if path.exists() else None

    def _read_snapshot(self, generation: int) -> PaxosSnapshot:
        return self._read_one(self._snapshot_path(generation), SNAPSHOT_MAGIC, generation, _SNAPSHOT)

    def _read_one(
        self, path: Path, magic: bytes, generation: int, decoder: msgspec.msgpack.Decoder[StructT]
    ) -> StructT:
        """Returns the only record of a file."""
        data = self._read_file(path, magic, generation)
        try:
            records = list(decode_records(data, generation))
            if len(records) != 1 or records[0][2] != len(data):
                raise self._damaged(path, "it is not one whole record")
            return decoder.decode(records[0][0])
        except (DamagedRecordError, *UNREADABLE) as error:
            raise self._damaged(path, str(error)) from error

    def _read_log(self, path: Path, generation: int) -> tuple[int, int]:
        """Returns where the last whole record ends, and its checksum; a torn tail is cut off."""
        data = self._read_file(path, LOG_MAGIC, generation)
        end, checksum, entries = FILE_HEADER.size, first_checksum(generation), []
        try:
            for payload, checksum, end in decode_records(data, generation):  # noqa: B007
                entries.extend(_BATCH.decode(payload))
        except (DamagedRecordError, *UNREADABLE) as error:
            raise self._damaged(path, str(error)) from error
        slot = self.snapshot.slot if self.snapshot is not None else 0
        decided = slot
        for entry in entries:
            if entry.slot not in (slot, slot + 1) or entry.slot <= decided:
                raise self._damaged(path, f"expected slot {slot + 1}, found {entry.slot}")
            decided, slot = entry.slot - 1, entry.slot
        self.entries = tuple(entries)
        self.cut_bytes = len(data) - end
        if self.cut_bytes and not self._read_only:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.ftruncate(descriptor, end)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return end, checksum

    def _read_file(self, path: Path, magic: bytes, generation: int) -> bytes:
        data = path.read_bytes()
        if data[: len(magic)] in FORMAT_1_MAGICS:
            raise ConfigurationError(
                f"{self.folder} was written by an earlier adamctl, whose controllers kept no votes; move it away to "
                "start with an empty configuration (nodes join again by themselves; jobs must be started again)"
            )
        if data[: FILE_HEADER.size] != encode_file_header(magic, generation):
            raise self._damaged(path, "its first 16 bytes are not those of such a file")
        return data

    def _damaged(self, path: Path, reason: str) -> DamagedDataError:
        return DamagedDataError(
            f"{path} is damaged: {reason}. A controller that has lost a promise must not continue under its identity. "
            f"If there are others, never put an old copy back: move {self.folder} away, start this controller again "
            "with an empty folder, and run `adamctl controller replace NAME --with NAME=HOST:PORT`, where --controller "
            f"names a living one. If it was the only one, put a copy of {self.folder} in its place, or move that "
            "folder away to start with an empty configuration (nodes join again by themselves; jobs must be started "
            "again)"
        )

    # --- files ------------------------------------------------------------------------------------------------------

    def _start(self, generation: int, size_bytes: int, checksum: int) -> None:
        self._generation = generation
        self._checksum = checksum
        self._log_bytes = size_bytes
        self._log = os.open(self._log_path(generation), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _create(self, path: Path, data: bytes) -> None:
        replace_file(path, data, path.with_name(f"new-{path.name}"))

    def _remove_all_but(self, generation: int) -> None:
        keep = {self._log_path(generation), self._snapshot_path(generation)}
        for pattern in ("log-*", "snapshot-*", "new-*"):
            for path in self.folder.glob(pattern):
                if path not in keep:
                    path.unlink(missing_ok=True)

    def _log_path(self, generation: int) -> Path:
        return self.folder / f"log-{generation:08d}"

    def _snapshot_path(self, generation: int) -> Path:
        return self.folder / f"snapshot-{generation:08d}"


def _number(path: Path) -> int:
    """Returns a file's generation, 0 if its name has none."""
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0

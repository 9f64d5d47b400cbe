"""A configuration as it is backed up, and what a restore makes of it, so that nothing goes back. Pure.

A backup is older than the cluster it was made of: processes have seen revisions, incarnations and epochs above those in
it. Whoever restores it therefore raises all of them by LEAP, more than any cluster uses up between two backups:

    revisions       the state has one that nobody has seen, so whoever watches is told everything anew; so have buckets.
                    Other keys keep theirs, which only ever meant these values: servers know a job by its layout's
    serial          sessions from before are unknown, and so are never taken for new ones
    incarnations    none is issued twice; there are no nodes, so every process that still runs starts over
    epochs          servers accept the restored records of buckets, and refuse what is left under way from before

Drains end with the processes that they were for.

One backup may be restored more than once, each time onto other controllers. So that two restores never issue the same
numbers, the operator's command first raises those of the backup to its clock (`raised_to_clock`). It does so outside of
the log's command, whose meaning is the same to all versions.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from msgspec.structs import replace

from adamctl.config.records import LEAP, NUMBER_MAX, BucketRecord, decode, encode
from adamctl.roles.controller.core.service.record_kinds import kind_of, record_problem
from adamctl.roles.controller.core.service.state import KeyState, Snapshot, snapshot_problem
from adamctl.wire.messages import ConfigEntry

ENDED: Final = ("/nodes/", "/drains/")
"""Keys about processes, none of which is one any more."""


class Backup(msgspec.Struct, frozen=True, array_like=True):
    """A configuration at a revision. Fields are only ever appended.

    Attributes:
        cluster: the identity that the cluster's processes and stores know it by.
    """

    cluster: str
    revision: int
    incarnation: int
    serial: int
    entries: tuple[ConfigEntry, ...]


_BACKUP = msgspec.msgpack.Decoder(Backup)


def encode_backup(state: KeyState, cluster: str) -> bytes:
    """Returns a state as a backup; sessions are not part of it."""
    return msgspec.msgpack.encode(Backup(cluster, state.revision, state.incarnation, state.serial, state.read("")))


def decode_backup(data: bytes | memoryview) -> Backup:
    """Raises one of `adamctl.wire.unreadable.UNREADABLE`: it is no backup, or one that no controller has made."""
    backup = _BACKUP.decode(data)
    if problem := snapshot_problem(as_snapshot(backup)):
        raise ValueError(problem)
    return backup


def raised_to_clock(backup: Backup, unix_s: float) -> bytes:
    """Returns a backup, encoded, with no number below the minutes since 1970 times LEAP.

    Raises:
        ValueError: the clock is so far off that no number could be raised any more.
    """
    least = int(unix_s // 60) * LEAP
    if least > NUMBER_MAX - 2 * LEAP:
        raise ValueError(f"expected a clock before the year 4000; found {unix_s:.0f} s since 1970")
    raised = replace(
        backup,
        revision=max(backup.revision, least),
        incarnation=max(backup.incarnation, least),
        serial=max(backup.serial, least),
        entries=tuple(replace(entry, value=_raised(entry, 0, least) or entry.value) for entry in backup.entries),
    )
    return msgspec.msgpack.encode(raised)


def as_snapshot(backup: Backup) -> Snapshot:
    """Returns a backup as a state, unraised."""
    return Snapshot(backup.revision, backup.incarnation, backup.entries, (), backup.serial, 0, backup.cluster)


def digest(data: bytes) -> str:
    """Returns what a restored state remembers of its backup, so that a repeated restore is recognised."""
    return blake2b(data, digest_size=16).hexdigest()


def problem_of_target(state: KeyState) -> str:
    """Returns why a backup cannot be restored onto this state; empty: it can."""
    if state.restored:
        return (
            "a backup has been restored here already; to restore another one, start new controllers with empty folders"
        )
    used = next((entry.key for entry in state.read("/") if not entry.key.startswith((*ENDED, "/retired"))), "")
    text = f"expected new controllers, without any job; found {used[:80]!a}"
    return f"{text}; start new ones with empty folders (--dir), and restore onto them" if used else ""


def restored(backup: Backup, state: KeyState, restored_from: str) -> tuple[Snapshot, tuple[str, ...]]:
    """Returns the state that a backup becomes in place of `state`, and the keys left out since they cannot be read.

    Raises:
        ValueError: its numbers cannot be raised any more, or it would be too large.
    """
    revision, incarnation, serial = (
        max(pair) + LEAP
        for pair in (
            (backup.revision, state.revision),
            (backup.incarnation, state.incarnation),
            (backup.serial, state.serial),
        )
    )
    kept: list[ConfigEntry] = []
    left_out: list[str] = []
    for entry in backup.entries:
        if entry.key.startswith(ENDED):
            continue
        value = _raised(entry, LEAP)
        if value is None:
            left_out.append(entry.key)
        else:
            kept.append(ConfigEntry(entry.key, value, entry.revision if value == entry.value else revision))
    found = Snapshot(revision, incarnation, tuple(kept), (), serial, serial, backup.cluster, restored_from)
    if problem := snapshot_problem(found):
        raise ValueError(problem)
    return found, tuple(left_out)


def _raised(entry: ConfigEntry, by: int, least: int = 0) -> bytes | None:
    """Returns what a key holds, with a higher epoch; None if what it holds is not the record that belongs there."""
    if record_problem(entry.key, entry.value):
        return None
    if kind_of(entry.key) is not BucketRecord:
        return entry.value
    record = decode(entry.value, BucketRecord)
    epoch = max(record.epoch, least) + by
    return encode(replace(record, epoch=epoch)) if epoch <= NUMBER_MAX else None

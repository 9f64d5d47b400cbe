"""The keys of the configuration service as a value that changes only by applying log records. Pure.

Applying the same records in the same order gives the same state on every member and after every restart: this is the
state machine that the log (one member now, Paxos later) feeds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from adamctl.wire.messages import ConfigEntry

KEY_BYTES_MAX = 512
VALUE_BYTES_MAX = 1 << 20
STATE_BYTES_MAX = 24 << 20
"""Keys and values together; below the largest body of a frame, so that a read of everything fits into one reply."""
ENTRY_OVERHEAD_BYTES = 64


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    """One decision, as its effect. What the log holds; fields are only ever appended.

    Attributes:
        revision: the store's revision after this record; the one before plus one if any key changed.
        puts, deletes: the changed keys.
        session, sequence: whose compare-and-set this was; empty for membership's own changes.
        conflicts: keys whose condition did not hold, remembered so that a repeated request gets the same answer.
        incarnation: the highest incarnation issued so far, 0 if this record issues none.
    """

    revision: int
    puts: dict[str, bytes] = {}
    deletes: tuple[str, ...] = ()
    session: str = ""
    sequence: int = 0
    conflicts: tuple[str, ...] = ()
    incarnation: int = 0


class SessionMemory(msgspec.Struct, frozen=True, array_like=True):
    """The last request of a session and its answer."""

    session: str
    sequence: int
    revision: int
    conflicts: tuple[str, ...]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The whole state at a revision. Sessions are in order of last use, oldest first."""

    revision: int
    incarnation: int
    entries: tuple[ConfigEntry, ...]
    sessions: tuple[SessionMemory, ...]


class Changes(msgspec.Struct, frozen=True):
    """What happened to the keys of a prefix after a revision; `reset`: entries are all there are."""

    revision: int
    entries: tuple[ConfigEntry, ...] = ()
    deleted: tuple[str, ...] = ()
    reset: bool = False


class KeyState:
    """Keys with revisions, a bounded history of which keys changed when, and a bounded memory of sessions.

    Attributes:
        revision: of the last change; 0 when nothing was ever written.
        incarnation: the highest one issued.
        size_bytes: keys and values, each entry with ENTRY_OVERHEAD_BYTES; at most STATE_BYTES_MAX.
    """

    def __init__(self, *, history_keys_max: int = 16_384, sessions_max: int = 4_096) -> None:
        """Remembers which key changed at which revision for the last `history_keys_max` changes of one key each, and
        the last answer of the `sessions_max` sessions used last."""
        self.revision = 0
        self.incarnation = 0
        self.size_bytes = 0
        self._entries: dict[str, ConfigEntry] = {}
        self._history: deque[tuple[int, str]] = deque()
        self._history_from = 0  # changes after this revision are all in _history
        self._history_keys_max = history_keys_max
        self._sessions: OrderedDict[str, SessionMemory] = OrderedDict()
        self._sessions_max = sessions_max

    def apply(self, record: LogRecord) -> None:
        """Makes the record's changes. The caller has checked that they are allowed."""
        changed = bool(record.puts or record.deletes)
        assert record.revision == self.revision + changed, (record.revision, self.revision)
        self.revision = record.revision
        self.incarnation = max(self.incarnation, record.incarnation)
        for key, value in record.puts.items():
            self._forget_size(key)
            self._entries[key] = ConfigEntry(key, value, record.revision)
            self.size_bytes += entry_bytes(key, value)
            self._history.append((record.revision, key))
        for key in record.deletes:
            self._forget_size(key)
            self._entries.pop(key, None)
            self._history.append((record.revision, key))
        while len(self._history) > self._history_keys_max:
            self._history_from = self._history.popleft()[0]
        if record.session:
            answer = SessionMemory(record.session, record.sequence, record.revision, record.conflicts)
            self._sessions[record.session] = answer
            self._sessions.move_to_end(record.session)
            if len(self._sessions) > self._sessions_max:
                self._sessions.popitem(last=False)

    def _forget_size(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self.size_bytes -= entry_bytes(key, entry.value)

    def get(self, key: str) -> ConfigEntry | None:
        return self._entries.get(key)

    def read(self, prefix: str) -> tuple[ConfigEntry, ...]:
        """Returns the entries whose key starts with `prefix`, sorted by key."""
        return tuple(self._entries[key] for key in sorted(key for key in self._entries if key.startswith(prefix)))

    def changes(self, prefix: str, after_revision: int) -> Changes:
        """Returns what changed under `prefix` after a revision: the entries as they are now, and what is gone.

        A revision that the history no longer covers, or that is still to come (the asker knew another store), gives a
        reset: all entries.
        """
        if after_revision < self._history_from or after_revision > self.revision:
            return Changes(self.revision, self.read(prefix), (), True)
        keys: set[str] = set()
        for revision, key in reversed(self._history):
            if revision <= after_revision:
                break
            if key.startswith(prefix):
                keys.add(key)
        present = tuple(self._entries[key] for key in sorted(keys) if key in self._entries)
        return Changes(self.revision, present, tuple(sorted(keys - self._entries.keys())))

    def remembered(self, session: str) -> SessionMemory | None:
        return self._sessions.get(session)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, self.incarnation, self.read(""), tuple(self._sessions.values()))

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces everything by a snapshot; the history begins at its revision."""
        self.revision = snapshot.revision
        self.incarnation = snapshot.incarnation
        self._entries = {entry.key: entry for entry in snapshot.entries}
        self.size_bytes = sum(entry_bytes(entry.key, entry.value) for entry in snapshot.entries)
        self._history.clear()
        self._history_from = snapshot.revision
        self._sessions = OrderedDict((memory.session, memory) for memory in snapshot.sessions)

    def size_after(self, puts: dict[str, bytes], deletes: Iterable[str]) -> int:
        """Returns what `size_bytes` would be after these changes."""
        size = self.size_bytes + sum(entry_bytes(key, value) for key, value in puts.items())
        for key in {*puts, *deletes}:
            entry = self._entries.get(key)
            size -= entry_bytes(key, entry.value) if entry is not None else 0
        return size


def entry_bytes(key: str, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_OVERHEAD_BYTES

"""The keys of the configuration service as a value that changes only by applying effects. Pure.

`adamctl.roles.controller.core.service.commands` defines the effect of a decided command. The same commands in the same
order give the same state on every member and after every restart.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from adamctl.config.records import NUMBER_MAX
from adamctl.wire.changes import Changes
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry

KEY_BYTES_MAX = 512
VALUE_BYTES_MAX = 1 << 20
STATE_BYTES_MAX = 24 << 20
"""Keys and values together; below the largest body of a frame, so that a read of everything fits into one reply."""
ENTRY_OVERHEAD_BYTES = 64
IDENTITY_CHARACTERS_MAX = 64
Sees: TypeAlias = Callable[[str], bool]
"""Says whether a reader sees a key."""

_CODES = frozenset(map(int, ErrorCode))


def _everything(key: str) -> bool:
    return True


class Effect(msgspec.Struct, frozen=True, array_like=True):
    """What one command changes.

    Attributes:
        revision: the store's revision afterwards: one more than before if any key changed, else the same.
        puts, deletes: the changed keys.
        session, sequence: whose compare-and-set this was; empty for membership's own changes.
        conflicts: keys whose condition did not hold, remembered so that a repeated request gets the same answer.
        incarnation: the highest incarnation issued so far, 0 if this one issues none.
        code: why the request was finally refused, 0 if it was not.
    """

    revision: int
    puts: dict[str, bytes] = {}
    deletes: tuple[str, ...] = ()
    session: str = ""
    sequence: int = 0
    conflicts: tuple[str, ...] = ()
    incarnation: int = 0
    code: int = 0


class SessionMemory(msgspec.Struct, frozen=True, array_like=True):
    """The last request of a session, its answer, and the state's `serial` at that time."""

    session: str
    sequence: int
    revision: int
    conflicts: tuple[str, ...]
    serial: int = 0
    code: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The whole state at a revision. Sessions are in order of last use, oldest first. Fields are only ever appended."""

    revision: int
    incarnation: int
    entries: tuple[ConfigEntry, ...]
    sessions: tuple[SessionMemory, ...]
    serial: int = 0
    forgotten_serial: int = 0
    cluster: str = ""
    restored: str = ""


def snapshot_problem(snapshot: Snapshot) -> str:
    """Returns why a state is not valid; empty: it is."""
    found = (snapshot.cluster, snapshot.restored)
    numbers = [snapshot.revision, snapshot.incarnation, snapshot.serial, snapshot.forgotten_serial]
    for memory in snapshot.sessions:
        numbers += [memory.sequence, memory.revision, memory.serial]
    if not all(0 <= number <= NUMBER_MAX for number in numbers):
        return f"expected numbers from 0 to {NUMBER_MAX} in a state; found {min(numbers)} to {max(numbers)}"
    if not all(len(text) <= IDENTITY_CHARACTERS_MAX and text.isalnum() for text in found if text):
        return f"expected identities of at most {IDENTITY_CHARACTERS_MAX} letters and digits; found {max(found)[:80]!a}"
    if not all(memory.code in _CODES for memory in snapshot.sessions):
        return "a session's answer has an unknown code"
    if not all(0 < entry.revision <= snapshot.revision for entry in snapshot.entries):
        return f"expected keys of revisions 1 to {snapshot.revision}"
    if sum(entry_bytes(entry.key, entry.value) for entry in snapshot.entries) > STATE_BYTES_MAX:
        return f"expected at most {STATE_BYTES_MAX} bytes of keys and values"
    return ""


_STATE = msgspec.msgpack.Decoder(Snapshot)


def decode_state(data: bytes) -> Snapshot:
    """Raises one of UNREADABLE if the data is not a state; it may still be one that `snapshot_problem` refuses."""
    return _STATE.decode(data)


class KeyState:
    """Keys with revisions, a bounded history of which keys changed when, and a bounded memory of sessions.

    Attributes:
        revision: of the last change; 0 when nothing was ever written.
        incarnation: the highest one issued.
        serial: how many requests of sessions have been carried out.
        forgotten_serial: no forgotten session was used after it. So a session that began at this serial or later has
            not been forgotten, while one that began earlier may have been.
        cluster: the identity of the cluster that was restored here; empty: none was.
        restored: which backup that was.
        size_bytes: keys and values, each entry with ENTRY_OVERHEAD_BYTES; at most STATE_BYTES_MAX.
    """

    def __init__(self, *, history_keys_max: int = 16_384, sessions_max: int = 4_096) -> None:
        """Remembers which key changed at which revision for the last `history_keys_max` changes of one key each, and
        the last answer of the `sessions_max` sessions used last."""
        self.revision = 0
        self.incarnation = 0
        self.serial = 0
        self.forgotten_serial = 0
        self.cluster = ""
        self.restored = ""
        self.size_bytes = 0
        self._entries: dict[str, ConfigEntry] = {}
        self._history: deque[tuple[int, str]] = deque()
        self._history_from = 0  # changes after this revision are all in _history
        self._history_keys_max = history_keys_max
        self._sessions: OrderedDict[str, SessionMemory] = OrderedDict()
        self._sessions_max = sessions_max

    def apply(self, effect: Effect) -> None:
        """Makes the changes of an effect. The caller has checked that they are allowed."""
        changed = bool(effect.puts or effect.deletes)
        assert effect.revision == self.revision + changed, (effect.revision, self.revision)
        self.revision = effect.revision
        self.incarnation = max(self.incarnation, effect.incarnation)
        for key, value in effect.puts.items():
            self._forget_size(key)
            self._entries[key] = ConfigEntry(key, value, effect.revision)
            self.size_bytes += entry_bytes(key, value)
            self._history.append((effect.revision, key))
        for key in effect.deletes:
            self._forget_size(key)
            self._entries.pop(key, None)
            self._history.append((effect.revision, key))
        while len(self._history) > self._history_keys_max:
            self._history_from = self._history.popleft()[0]
        if effect.session:
            self.serial += 1
            answer = SessionMemory(
                effect.session, effect.sequence, effect.revision, effect.conflicts, self.serial, effect.code
            )
            self._sessions[effect.session] = answer
            self._sessions.move_to_end(effect.session)
            if len(self._sessions) > self._sessions_max:
                _, forgotten = self._sessions.popitem(last=False)
                self.forgotten_serial = max(self.forgotten_serial, forgotten.serial)

    def _forget_size(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self.size_bytes -= entry_bytes(key, entry.value)

    def get(self, key: str) -> ConfigEntry | None:
        return self._entries.get(key)

    def revision_of(self, key: str) -> int:
        """Returns the revision of a key's last change, 0 if there is no such key."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.revision

    def read(self, prefix: str, sees: Sees = _everything) -> tuple[ConfigEntry, ...]:
        """Returns the entries whose key starts with `prefix`, sorted by key; only those that the reader `sees`."""
        keys = sorted(key for key in self._entries if key.startswith(prefix) and sees(key))
        return tuple(self._entries[key] for key in keys)

    def changes(self, prefix: str, after_revision: int, sees: Sees = _everything) -> Changes:
        """Returns what changed under `prefix` after a revision: the entries as they are now, and what is gone.

        Only keys that the reader `sees`. A revision that the history no longer covers, or that lies in the future (the
        caller knew another store), gives a reset: all entries.
        """
        if after_revision < self._history_from or after_revision > self.revision:
            return Changes(self.revision, self.read(prefix, sees), (), True)
        keys: set[str] = set()
        for revision, key in reversed(self._history):
            if revision <= after_revision:
                break
            if key.startswith(prefix) and sees(key):
                keys.add(key)
        present = tuple(self._entries[key] for key in sorted(keys) if key in self._entries)
        return Changes(self.revision, present, tuple(sorted(keys - self._entries.keys())))

    def remembered(self, session: str) -> SessionMemory | None:
        return self._sessions.get(session)

    def snapshot(self) -> Snapshot:
        sessions = tuple(self._sessions.values())
        numbers = (self.revision, self.incarnation, self.read(""), sessions, self.serial, self.forgotten_serial)
        return Snapshot(*numbers, self.cluster, self.restored)

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces everything with a snapshot; the history begins at its revision."""
        self.revision = snapshot.revision
        self.incarnation = snapshot.incarnation
        self.serial = snapshot.serial
        self.forgotten_serial = snapshot.forgotten_serial
        self.cluster, self.restored = snapshot.cluster, snapshot.restored
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

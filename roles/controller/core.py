"""The configuration service as a pure state machine: an event and a clock reading in, instructions out.

The shell carries out the instructions of a step in order, and answers nothing before the `Persist` instructions in
front of it are on disk. So an answer never promises, and a read never shows, what a power failure could take back.

Membership: a registered process has a key `/nodes/{id}` and an incarnation that was never issued before, not even
before a restart. It lives while its beacons come; silent for `lost_after_s`, it loses its key. A name whose process is
still alive is refused to another process. A name whose process has closed its connection is taken over at once; should
the old process still be there, its next beacon is refused with STALE_INCARNATION.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from adamctl.config.records import NodeRecord, decode, encode, node_key
from adamctl.roles.controller.core_events import (
    Answer,
    Beacon,
    CompareAndSet,
    Disconnected,
    Event,
    Gone,
    Instruction,
    Leave,
    Notice,
    Persist,
    Read,
    Refuse,
    Register,
    Tick,
    Watch,
)
from adamctl.roles.controller.core_state import (
    KEY_BYTES_MAX,
    STATE_BYTES_MAX,
    VALUE_BYTES_MAX,
    KeyState,
    LogRecord,
    Snapshot,
)
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigCompareAndSetReply,
    ConfigReadReply,
    ConfigWatchReply,
    Empty,
    NodeRegisterReply,
)

NODES_PREFIX = "/nodes/"
NAMES_BYTES_MAX = 32 << 10
"""Of key names in one reply's typed header, which may be 64 KiB."""


@dataclass(frozen=True)
class ControllerConfig:
    """Limits and times. A beacon comes every `beacon_interval_s`; a node silent for `lost_after_s` loses its key."""

    beacon_interval_s: float = 1.0
    lost_after_s: float = 5.0
    watchers_max: int = 4_096
    wait_s_max: float = 60.0
    history_keys_max: int = 16_384
    sessions_max: int = 4_096


@dataclass
class _Node:
    """A living node. `connection` is where it was last heard from, None once that is closed."""

    record: NodeRecord
    heard_s: float
    connection: int | None


@dataclass(frozen=True, slots=True)
class _Watcher:
    request: Watch
    deadline_s: float


class ControllerCore:
    """The one member there is. Not thread-safe; knows no clock but the `now` it is given."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig()
        self.state = KeyState(history_keys_max=self.config.history_keys_max, sessions_max=self.config.sessions_max)
        self._nodes: dict[str, _Node] = {}
        self._watchers: dict[int, _Watcher] = {}  # by token
        self._ticked_s = 0.0

    def recover(self, snapshot: Snapshot | None, records: tuple[LogRecord, ...], now: float) -> None:
        """Takes up what the store held. Every node counts as heard from now: nobody could reach us before."""
        if snapshot is not None:
            self.state.restore(snapshot)
        for record in records:
            self.state.apply(record)
        self._nodes.clear()
        self._follow_nodes((entry.key for entry in self.state.read(NODES_PREFIX)), now)
        self._ticked_s = now

    def step(self, event: Event, now: float) -> list[Instruction]:
        """Returns what to do about an event at clock reading `now` (seconds, never going back)."""
        out: list[Instruction] = []
        match event:
            case Read():
                out.append(Answer(event.token, ConfigReadReply(self.state.revision), self.state.read(event.prefix)))
            case CompareAndSet():
                self._compare_and_set(event, now, out)
            case Watch():
                self._watch(event, now, out)
            case Register():
                self._register(event, now, out)
            case Beacon():
                self._beacon(event, now, out)
            case Leave():
                self._leave(event, now, out)
            case Disconnected():
                self._disconnected(event.connection, out)
            case Gone():
                self._gone(event, now, out)
            case Tick():
                self._tick(now, out)
        return out

    @property
    def next_deadline_s(self) -> float:
        """Clock reading of the next watch that runs out, or inf."""
        return min((watcher.deadline_s for watcher in self._watchers.values()), default=float("inf"))

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def living(self) -> dict[str, NodeRecord]:
        """Returns the registered nodes by name."""
        return {name: node.record for name, node in self._nodes.items()}

    def heard_s(self) -> dict[str, float]:
        """Returns the clock reading at which each living node was last heard from."""
        return {name: node.heard_s for name, node in self._nodes.items()}

    def unconnected(self) -> list[NodeRecord]:
        """Returns the nodes whose last connection is closed: perhaps gone, perhaps about to come back."""
        return [node.record for node in self._nodes.values() if node.connection is None]

    # --- keys -------------------------------------------------------------------------------------------------------

    def _compare_and_set(self, event: CompareAndSet, now: float, out: list[Instruction]) -> None:
        problem = _check_request(event)
        if problem:
            out.append(Refuse(event.token, ErrorCode.BAD_MESSAGE, problem))
            return
        memory = self.state.remembered(event.session)
        if memory is not None and memory.sequence == event.sequence:
            out.append(Answer(event.token, ConfigCompareAndSetReply(memory.revision, memory.conflicts)))
            return
        if memory is not None and memory.sequence > event.sequence:
            text = f"request {event.sequence} of session {event.session} comes after its request {memory.sequence}"
            out.append(Refuse(event.token, ErrorCode.SEQUENCE_GAP, text))
            return
        if memory is None and event.sequence != 1:
            text = f"session {event.session} is not known (any more): its request may have been done before"
            out.append(Refuse(event.token, ErrorCode.CLIENT_EVICTED, text))
            return
        changes = event.changes
        if self.state.size_after(changes.puts, changes.deletes) > STATE_BYTES_MAX:
            text = f"the configuration would grow beyond {STATE_BYTES_MAX >> 20} MiB; end or remove old jobs"
            out.append(Refuse(event.token, ErrorCode.OVER_QUOTA, text))
            return
        conflicts = _within_bytes(self._conflicts(changes.conditions))
        changed = not conflicts and bool(changes.puts or changes.deletes)
        record = LogRecord(
            revision=self.state.revision + changed,
            puts=dict(changes.puts) if changed else {},
            deletes=tuple(changes.deletes) if changed else (),
            session=event.session,
            sequence=event.sequence,
            conflicts=conflicts,
        )
        self._commit(record, now, out)
        out.append(Answer(event.token, ConfigCompareAndSetReply(record.revision, conflicts)))
        self._notify(record, out)

    def _conflicts(self, conditions: dict[str, int]) -> list[str]:
        found = []
        for key, revision in sorted(conditions.items()):
            entry = self.state.get(key)
            if (entry.revision if entry is not None else 0) != revision:
                found.append(key)
        return found

    def _commit(self, record: LogRecord, now: float, out: list[Instruction]) -> None:
        self.state.apply(record)
        out.append(Persist(record))
        self._follow_nodes((*record.puts, *record.deletes), now)

    # --- watches ----------------------------------------------------------------------------------------------------

    def _watch(self, event: Watch, now: float, out: list[Instruction]) -> None:
        answer = self._watch_answer(event)
        if answer is not None:
            out.append(answer)
        elif len(self._watchers) >= self.config.watchers_max:
            text = f"{self.config.watchers_max} requests are watching already, which is the limit"
            out.append(Refuse(event.token, ErrorCode.OVER_QUOTA, text))
        else:
            wait_s = min(max(event.wait_s, 0.0), self.config.wait_s_max)
            self._watchers[event.token] = _Watcher(event, now + wait_s)

    def _watch_answer(self, event: Watch) -> Answer | None:
        changes = self.state.changes(event.prefix, event.after_revision)
        if not (changes.reset or changes.entries or changes.deleted):
            return None
        if len(_within_bytes(changes.deleted)) < len(changes.deleted):  # too many names for a header: start afresh
            message = ConfigWatchReply(changes.revision, (), True)
            return Answer(event.token, message, self.state.read(event.prefix))
        message = ConfigWatchReply(changes.revision, changes.deleted, changes.reset)
        return Answer(event.token, message, changes.entries)

    def _notify(self, record: LogRecord, out: list[Instruction]) -> None:
        keys = (*record.puts, *record.deletes)
        for token, watcher in list(self._watchers.items()):
            if any(key.startswith(watcher.request.prefix) for key in keys):
                answer = self._watch_answer(watcher.request)
                if answer is not None:
                    del self._watchers[token]
                    out.append(answer)

    # --- membership -------------------------------------------------------------------------------------------------

    def _register(self, event: Register, now: float, out: list[Instruction]) -> None:
        request = event.request
        old = self._nodes.get(request.node)
        if not request.node or "/" in request.node or len(request.node.encode()) > KEY_BYTES_MAX // 2:
            text = f"{request.node!r} is no name for a node; expected 1 to 256 bytes without '/'"
            out.append(Refuse(event.token, ErrorCode.BAD_CONFIGURATION, text))
            return
        same = old is not None and (old.record.host, old.record.pid) == (request.host, request.pid)
        if old is not None and old.connection is not None and not same:
            text = (
                f"the name {request.node!r} belongs to a living {old.record.role} (process {old.record.pid} on "
                f"{_host_name(old.record)}); choose another --name, or end that process first"
            )
            out.append(Refuse(event.token, ErrorCode.BAD_CONFIGURATION, text))
            return
        incarnation = self.state.incarnation + 1
        node = NodeRecord(
            request.node,
            request.role,
            incarnation,
            request.addresses,
            request.host,
            request.pid,
            request.capacity_bytes,
        )
        if self.state.size_after({node_key(node.node): encode(node)}, ()) > STATE_BYTES_MAX:
            out.append(Refuse(event.token, ErrorCode.OVER_QUOTA, "the configuration is full; end or remove old jobs"))
            return
        record = LogRecord(
            revision=self.state.revision + 1, puts={node_key(node.node): encode(node)}, incarnation=incarnation
        )
        self._commit(record, now, out)
        self._nodes[node.node].connection = event.connection
        reply = NodeRegisterReply(incarnation, self.config.beacon_interval_s, self.config.lost_after_s)
        out.append(Answer(event.token, reply))
        self._notify(record, out)
        out.append(Notice(f"{node.role} {node.node} joined from {_host_name(node)}, incarnation {incarnation}"))

    def _beacon(self, event: Beacon, now: float, out: list[Instruction]) -> None:
        node = self._nodes.get(event.node)
        if node is None or node.record.incarnation != event.incarnation:
            if node is None:
                text = (
                    f"{event.node} (incarnation {event.incarnation}) is no longer a member: it left, or was silent for "
                    f"more than {self.config.lost_after_s:g} s; start it again"
                )
            else:
                text = (
                    f"the name {event.node} was taken over by incarnation {node.record.incarnation} (process "
                    f"{node.record.pid} on {_host_name(node.record)}); this is incarnation {event.incarnation}"
                )
            out.append(Refuse(event.token, ErrorCode.STALE_INCARNATION, text))
            return
        node.heard_s = now
        node.connection = event.connection
        out.append(Answer(event.token, Empty()))

    def _leave(self, event: Leave, now: float, out: list[Instruction]) -> None:
        node = self._nodes.get(event.node)
        if node is not None and node.record.incarnation == event.incarnation:
            self._remove(node, now, out, "left")
        out.append(Answer(event.token, Empty()))

    def _remove(self, node: _Node, now: float, out: list[Instruction], why: str) -> None:
        record = LogRecord(revision=self.state.revision + 1, deletes=(node_key(node.record.node),))
        self._commit(record, now, out)
        self._notify(record, out)
        out.append(Notice(f"{node.record.role} {node.record.node} on {_host_name(node.record)} {why}"))

    def _follow_nodes(self, keys: Iterable[str], now: float) -> None:
        """Makes `_nodes` what the keys say. A record that is not a node's is kept as a key and means nothing here."""
        for key in keys:
            if not key.startswith(NODES_PREFIX):
                continue
            name = key.removeprefix(NODES_PREFIX)
            entry = self.state.get(key)
            try:
                record = None if entry is None else decode(entry.value, NodeRecord)
            except msgspec.MsgspecError:
                record = None
            if record is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = _Node(record, now, None)

    def _gone(self, event: Gone, now: float, out: list[Instruction]) -> None:
        node = self._nodes.get(event.node)
        if node is not None and node.connection is None and node.record.incarnation == event.incarnation:
            self._remove(node, now, out, "is lost: its process has ended")

    def _disconnected(self, connection: int, out: list[Instruction]) -> None:
        for node in self._nodes.values():
            if node.connection == connection:
                node.connection = None
        for token, watcher in list(self._watchers.items()):
            if watcher.request.connection == connection:
                del self._watchers[token]
                out.append(Refuse(token, ErrorCode.SHUTTING_DOWN, "the connection was closed"))

    def _tick(self, now: float, out: list[Instruction]) -> None:
        if now - self._ticked_s > self.config.lost_after_s / 2:
            # We were stopped or stalled ourselves; beacons that came meanwhile are still queued behind this event.
            for node in self._nodes.values():
                node.heard_s = now
        self._ticked_s = now
        for node in list(self._nodes.values()):
            silent_s = now - node.heard_s
            if silent_s > self.config.lost_after_s:
                self._remove(node, now, out, f"is lost: no beacon for {silent_s:.1f} s")
        for token, watcher in list(self._watchers.items()):
            if watcher.deadline_s <= now:
                del self._watchers[token]
                out.append(Answer(token, ConfigWatchReply(self.state.revision), ()))


def _check_request(event: CompareAndSet) -> str:
    changes = event.changes
    if not event.session or event.sequence < 1:
        return "a compare-and-set needs a session and a sequence number from 1 on"
    if len(event.session) > KEY_BYTES_MAX:
        return f"the session's name is longer than {KEY_BYTES_MAX} characters"
    for key in {*changes.puts, *changes.deletes, *changes.conditions}:
        if not key.startswith("/") or len(key.encode()) > KEY_BYTES_MAX:
            return f"{key[:80]!r} is no key; expected at most {KEY_BYTES_MAX} bytes that begin with '/'"
    for key, value in changes.puts.items():
        if len(value) > VALUE_BYTES_MAX:
            return f"the value of {key} has {len(value)} bytes; at most {VALUE_BYTES_MAX} are allowed"
    both = sorted(changes.puts.keys() & set(changes.deletes))
    if both:
        return f"{both[0]} is both put and deleted"
    return ""


def _within_bytes(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Returns as many of the first names as a typed header has room for."""
    total, kept = 0, []
    for name in names:
        total += len(name.encode()) + 4
        if total > NAMES_BYTES_MAX:
            break
        kept.append(name)
    return tuple(kept)


def _host_name(record: NodeRecord) -> str:
    """Returns the part of a host's identity that people know it by."""
    return record.host.partition("/")[0]

"""The log's values and what each does to the keys: it depends on the state alone, so all members agree. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from adamctl.config.records import NodeRecord, decode, encode, node_key
from adamctl.roles.controller.core.service.backup import decode_backup, digest, problem_of_target, restored
from adamctl.roles.controller.core.service.state import STATE_BYTES_MAX, Effect, KeyState
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply, NodeRegisterRequest
from adamctl.wire.unreadable import UNREADABLE

_FULL = f"the configuration would grow beyond {STATE_BYTES_MAX >> 20} MiB; end or remove old jobs"
NAMES_BYTES_MAX = 32 << 10
"""Bound on the key names in one reply's typed header, which may be 64 KiB."""


class Change(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A compare-and-set. `known_serial`: the state's serial when its session began."""

    session: str
    sequence: int
    changes: ConfigChanges
    known_serial: int = 0


class Join(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A node gets its key and an incarnation, if the key's revision has not changed since this was allowed."""

    request: NodeRegisterRequest
    revision: int


class Part(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A node loses its key, if the key still belongs to that incarnation."""

    node: str
    incarnation: int


class Restore(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A backup takes the place of all keys (`adamctl.roles.controller.core.service.backup`)."""

    backup: bytes


Command: TypeAlias = Change | Join | Part | Restore
_COMMANDS: msgspec.msgpack.Decoder[list[Command]] = msgspec.msgpack.Decoder(list[Command])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did. If its code is not OK, it changed nothing.

    Attributes:
        effect: what was applied; None if nothing was.
        revision, conflicts: the answer to a compare-and-set; for a repeated request, the first answer.
        record: the node that joined.
        replaced: all keys may have changed, beside what `effect` says.
        left_out: keys of a backup that could not be read.
    """

    effect: Effect | None = None
    revision: int = 0
    conflicts: tuple[str, ...] = ()
    record: NodeRecord | None = None
    replaced: bool = False
    left_out: tuple[str, ...] = ()
    code: ErrorCode = ErrorCode.OK
    message: str = ""
    details: dict[str, object] = field(default_factory=dict)

    def reply(self) -> ConfigCompareAndSetReply:
        return ConfigCompareAndSetReply(self.revision, self.conflicts)


def encode_commands(commands: Sequence[Command]) -> bytes:
    """Returns a log value: b"" for no command."""
    return msgspec.msgpack.encode(list(commands)) if commands else b""


def decode_commands(value: bytes) -> list[Command]:
    """Raises one of UNREADABLE if the value is not a list of commands."""
    return _COMMANDS.decode(value) if value else []


def carry_out(state: KeyState, command: Command) -> Outcome:
    """Applies a decided command to the state."""
    match command:
        case Change():
            return _change(state, command)
        case Join():
            return _join(state, command)
        case Part():
            return _part(state, command)
        case Restore():
            return _restore(state, command)


def _change(state: KeyState, command: Change) -> Outcome:
    memory = state.remembered(command.session)
    if memory is not None and memory.sequence == command.sequence:
        if memory.code:
            return Outcome(code=ErrorCode(memory.code), message=_FULL)
        return Outcome(revision=memory.revision, conflicts=memory.conflicts)
    if memory is not None and memory.sequence > command.sequence:
        text = f"request {command.sequence} of session {command.session} comes after its request {memory.sequence}"
        return Outcome(code=ErrorCode.SEQUENCE_GAP, message=text)
    if memory is None and (command.sequence != 1 or command.known_serial < state.forgotten_serial):
        text = f"session {command.session} is not known, or forgotten: its request may have been done already"
        return Outcome(code=ErrorCode.CLIENT_EVICTED, message=text, details={"serial": state.serial})
    changes = command.changes
    if state.size_after(changes.puts, changes.deletes) > STATE_BYTES_MAX:
        code = ErrorCode.OVER_QUOTA
        effect = Effect(state.revision, session=command.session, sequence=command.sequence, code=int(code))
        state.apply(effect)
        return Outcome(code=code, message=_FULL)
    conflicts = within_bytes(_conflicts(state, changes.conditions))
    changed = not conflicts and bool(changes.puts or changes.deletes)
    effect = Effect(
        revision=state.revision + changed,
        puts=dict(changes.puts) if changed else {},
        deletes=tuple(changes.deletes) if changed else (),
        session=command.session,
        sequence=command.sequence,
        conflicts=conflicts,
    )
    state.apply(effect)
    return Outcome(effect, effect.revision, conflicts)


def _conflicts(state: KeyState, conditions: dict[str, int]) -> list[str]:
    return [key for key, revision in sorted(conditions.items()) if state.revision_of(key) != revision]


def _join(state: KeyState, command: Join) -> Outcome:
    request = command.request
    key = node_key(request.node)
    there = node_in(state, key)
    if there is not None and request.process and there.process == request.process:
        return Outcome(revision=state.revision, record=there)  # repeated: a new incarnation would depose this one
    if state.revision_of(key) != command.revision:
        return Outcome(conflicts=(key,))
    try:
        record = record_of(request, state.incarnation + 1)
    except ValueError as error:
        return Outcome(code=ErrorCode.BAD_CONFIGURATION, message=f"{request.node!a} cannot be registered: {error}")
    puts = {key: encode(record)}
    if state.size_after(puts, ()) > STATE_BYTES_MAX:
        return Outcome(code=ErrorCode.OVER_QUOTA, message=_FULL)
    effect = Effect(revision=state.revision + 1, puts=puts, incarnation=record.incarnation)
    state.apply(effect)
    return Outcome(effect, effect.revision, record=record)


def record_of(request: NodeRegisterRequest, incarnation: int) -> NodeRecord:
    """Returns a node as it is recorded. Raises ValueError if something in it is out of bounds."""
    return NodeRecord(
        request.node,
        request.role,
        incarnation,
        request.addresses,
        request.host,
        request.pid,
        request.capacity_bytes,
        request.administration_addresses,
        request.replication_addresses,
        request.bodies_bytes_max,
        request.credit_bytes,
        request.process,
        request.stores,
        request.failure_domain,
    )


def _part(state: KeyState, command: Part) -> Outcome:
    key = node_key(command.node)
    record = node_in(state, key)
    if record is None or record.incarnation != command.incarnation:
        return Outcome(revision=state.revision)
    effect = Effect(revision=state.revision + 1, deletes=(key,))
    state.apply(effect)
    return Outcome(effect, effect.revision, record=record)


def _restore(state: KeyState, command: Restore) -> Outcome:
    name = digest(command.backup)
    if state.restored == name:
        return Outcome(revision=state.revision)  # repeated
    problem = restore_problem(state, command)
    if problem is not None:
        return problem
    snapshot, left_out = restored(decode_backup(command.backup), state, name)
    state.restore(snapshot)
    return Outcome(revision=state.revision, replaced=True, left_out=within_bytes(left_out))


def restore_problem(state: KeyState, command: Restore) -> Outcome | None:
    """Returns why a backup cannot be restored onto a state; None if it can, or has been."""
    if state.restored == digest(command.backup):
        return None
    if problem := problem_of_target(state):
        return Outcome(code=ErrorCode.BAD_CONFIGURATION, message=problem)
    try:
        restored(decode_backup(command.backup), state, "")
    except UNREADABLE as error:
        return Outcome(code=ErrorCode.BAD_MESSAGE, message=f"this is no backup of a configuration: {error}")
    return None


def node_in(state: KeyState, key: str) -> NodeRecord | None:
    """Returns the node under a key; None if there is no such key, or its value is not a node's record."""
    entry = state.get(key)
    try:
        return None if entry is None else decode(entry.value, NodeRecord)
    except UNREADABLE:
        return None


def within_bytes(names: Sequence[str], bytes_max: int = NAMES_BYTES_MAX) -> tuple[str, ...]:
    """Returns the first names, as many as a typed header has room for."""
    total, kept = 0, []
    for name in names:
        total += len(name.encode()) + 4
        if total > bytes_max:
            break
        kept.append(name)
    return tuple(kept)

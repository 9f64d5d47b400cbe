"""Checks of requests, and the size of the commands they become. Pure."""

from __future__ import annotations

import msgspec

from adamctl.config.records import NUMBER_MAX
from adamctl.roles.controller.core.service.commands import Change, Command, Restore
from adamctl.roles.controller.core.service.events import CompareAndSet
from adamctl.roles.controller.core.service.record_kinds import record_problem
from adamctl.roles.controller.core.service.state import KEY_BYTES_MAX, VALUE_BYTES_MAX


def size_bytes_of(command: Command) -> int:
    """Returns about how many bytes an encoded command has; never much less than it really has."""
    if isinstance(command, Restore):
        return len(command.backup) + 64
    if not isinstance(command, Change):
        return len(msgspec.msgpack.encode(command))
    changes = command.changes
    keys = (*changes.puts, *changes.deletes, *changes.conditions)
    return sum(len(value) + 8 for value in changes.puts.values()) + sum(len(key) + 16 for key in keys) + 64


def request_problem(event: CompareAndSet) -> str:
    """Returns why a compare-and-set is not valid; empty: it is."""
    changes = event.changes
    if not event.session or not 1 <= event.sequence <= NUMBER_MAX:
        return "a compare-and-set needs a session and a sequence number from 1 on"
    if len(event.session) > KEY_BYTES_MAX:
        return f"the session's name is longer than {KEY_BYTES_MAX} characters"
    for key in {*changes.puts, *changes.deletes, *changes.conditions}:
        if not key.startswith("/") or len(key.encode()) > KEY_BYTES_MAX:
            return f"{key[:80]!r} is not a valid key; expected at most {KEY_BYTES_MAX} bytes that begin with '/'"
    for key, value in changes.puts.items():
        if len(value) > VALUE_BYTES_MAX:
            return f"the value of {key} has {len(value)} bytes; at most {VALUE_BYTES_MAX} are allowed"
        problem = record_problem(key, value)
        if problem:
            return problem
    both = sorted(changes.puts.keys() & set(changes.deletes))
    if both:
        return f"{both[0]} is both put and deleted"
    return ""

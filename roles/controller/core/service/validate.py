"""Checks of requests, with the records that they put under keys, and the size of the commands they become. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from adamctl.config.records import (
    NUMBER_MAX,
    RETIRED_KEY,
    BucketRecord,
    DrainRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    RetiredRecord,
    ServedRecord,
    decode,
)
from adamctl.roles.controller.core.service.commands import Change, Command
from adamctl.roles.controller.core.service.events import CompareAndSet
from adamctl.roles.controller.core.service.state import KEY_BYTES_MAX, VALUE_BYTES_MAX
from adamctl.wire.unreadable import UNREADABLE

_KINDS: Final[tuple[tuple[re.Pattern[str], type[msgspec.Struct]], ...]] = (
    (re.compile(r"/nodes/[^/]+"), NodeRecord),
    (re.compile(r"/jobs/[^/]+"), JobRecord),
    (re.compile(r"/jobs/[^/]+/layout"), LayoutRecord),
    (re.compile(r"/jobs/[^/]+/buckets/\d{6,}"), BucketRecord),
    (re.compile(r"/jobs/[^/]+/served/[^/]+"), ServedRecord),
    (re.compile(r"/drains/[^/]+"), DrainRecord),
    (re.compile(re.escape(RETIRED_KEY)), RetiredRecord),
)


def size_bytes_of(command: Command) -> int:
    """Returns about how many bytes an encoded command has; never much less than it really has."""
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


def record_problem(key: str, value: bytes) -> str:
    """Returns why a value is not the record that belongs under its key; empty: it is, or the key has no record type."""
    for pattern, kind in _KINDS:
        if pattern.fullmatch(key) is not None:
            try:
                record = decode(value, kind)  # type: ignore[type-var]
                if isinstance(record, LayoutRecord):
                    record.layout()
            except UNREADABLE as error:
                return f"{key}: expected a {kind.__name__}: {error}"
    return ""

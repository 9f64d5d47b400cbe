"""Which record belongs under which key, and whether a value is one. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from adamctl.config.records import (
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


def kind_of(key: str) -> type[msgspec.Struct] | None:
    """Returns the type of the record that belongs under a key; None if there is none."""
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(key) is not None), None)


def record_problem(key: str, value: bytes) -> str:
    """Returns why a value is not the record that belongs under its key; empty: it is, or the key has no record type."""
    kind = kind_of(key)
    if kind is None:
        return ""
    try:
        record = decode(value, kind)  # type: ignore[type-var]
        if isinstance(record, LayoutRecord):
            record.layout()
    except UNREADABLE as error:
        return f"{key}: expected a {kind.__name__}: {error}"
    return ""

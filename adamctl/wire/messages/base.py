"""The base of all typed headers."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of every typed header."""

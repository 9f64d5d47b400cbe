"""What a watcher of the configuration service's keys receives, from any implementation."""

from __future__ import annotations

import msgspec

from adamctl.wire.messages import ConfigEntry


class Changes(msgspec.Struct, frozen=True):
    """Changes of the keys with a prefix after a revision; with `reset`, `entries` is the complete state."""

    revision: int
    entries: tuple[ConfigEntry, ...] = ()
    deleted: tuple[str, ...] = ()
    reset: bool = False

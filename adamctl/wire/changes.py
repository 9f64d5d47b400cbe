"""What whoever watches the keys of the configuration service learns, whichever service keeps them."""

from __future__ import annotations

import msgspec

from adamctl.wire.messages import ConfigEntry


class Changes(msgspec.Struct, frozen=True):
    """What happened to the keys of a prefix after a revision; `reset`: entries are all there are."""

    revision: int
    entries: tuple[ConfigEntry, ...] = ()
    deleted: tuple[str, ...] = ()
    reset: bool = False
